"""Inside the training process: what is observed, what may be changed, and how it is published.

A process has one session (one run, one ring, one control socket) and any number of monitors.

For `tuimon run`, in this order:

    from tuimon.train.session import Session, start_session      # imports no torch
    session = start_session(name=…, argv=…, report=…)            # never raises; may be unwatched
    session.watched                                              # False: no room, or disabled

    from tuimon.train.monitor import arm, watch_discovered       # imports torch
    arm(session, on_unknown_optimizer=callback)                  # process-wide taps, idempotent
    monitor = watch_discovered(models, optimizers, session, scaler=None, scheduler=None)

    session.finish("ok" | "exception" | "stopped", code=…, detail=…)    # first call wins

`arm` belongs right after torch has been imported: from then on losses, clipping and scaling are
kept, so that what is discovered at the first update still yields a complete step 0.
`callback(optimizer)` is called before every update of an optimizer that nobody watches, also
before a `GradScaler.step` that will skip it; it may call `watch_discovered`, and what it raises
stops at the failure boundary. It is not called again for an optimizer after it returned, unless
it returned False. `watch_discovered` may be called again with more models and optimizers, never
raises, and returns the monitor of those objects. A script that calls `tuimon.watch` itself joins
the same session. `start_session` prints the line that says how to attach. `Stop` lives in
`tuimon.train.boundary`, which imports no torch.
"""
