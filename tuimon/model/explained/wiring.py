"""Causes that lie in how model, loss, optimizer and state are connected, and beyond one process."""

from __future__ import annotations

from tuimon.model.explained.entry import Explanation

WIRING = {
    "loss-api": Explanation(
        "loss used with the wrong shape or kind of input",
        "The loss runs but means something else: (N, 1) against (N) broadcasts to (N, N), "
        "cross_entropy gets probabilities, nll_loss or kl_div gets numbers that are no logarithms, "
        "a softmax runs over the batch.",
        "Shapes that broadcast and functions that apply their own softmax accept the mistake "
        "silently: the loss then has a floor that no training passes, such as 1.46 for a softmax "
        "taken twice over ten classes, or falls below 0, which no such loss can.",
        "Give both sides the same shape; raw logits to cross_entropy and "
        "binary_cross_entropy_with_logits, logarithms of probabilities to nll_loss and kl_div.",
        "loss = F.mse_loss(pred.squeeze(-1), target)\nloss = F.cross_entropy(logits, target)\n"
        'loss = F.kl_div(F.log_softmax(logits, dim=1), target, reduction="batchmean")',
    ),
    "zero-grad": Explanation(
        "zero_grad missing or in the wrong place",
        "No update happens because gradients are cleared between backward and step, or they pile "
        "up because they never are, or those of some parameters are not.",
        "backward adds to .grad, and optimizer.step() uses what lies there at that moment. A "
        "zero_grad of another model or optimizer leaves these alone; one between accumulated "
        "batches throws the earlier ones away.",
        "Clear before the first backward of an update, once, and what the optimizer holds.",
        "optimizer.zero_grad()\nfor batch in batches:  # of one update\n"
        "    (loss_of(batch) / len(batches)).backward()\noptimizer.step()",
    ),
    "params-stuck": Explanation(
        "parameters that never change",
        "Trainable parameters get no gradient, or are not in the optimizer.",
        "The graph is cut (detach, no_grad, .data, re-entrant checkpointing of inputs that need no "
        "gradient), the optimizer was built before a part of the model was replaced, or modules "
        "lie in a plain list, where model.parameters() does not find them.",
        "Build the optimizer after the last change of the model; keep modules in a ModuleList or "
        "ModuleDict; use_reentrant=False for checkpointing; look for detach.",
        "self.blocks = nn.ModuleList(blocks)\ncheckpoint(block, x, use_reentrant=False)\n"
        "optimizer = torch.optim.AdamW(model.parameters())  # after the model is complete",
    ),
    "uninit-weights": Explanation(
        "uninitialised memory in parameters or buffers",
        "A parameter or buffer is non-finite before the first step.",
        "torch.empty and to_empty hold whatever lay in memory; an init function that knows only "
        "some layer types leaves the rest.",
        "Initialise every parameter and buffer after to_empty.",
        "for name, p in model.named_parameters():\n    assert torch.isfinite(p).all(), name",
    ),
    "bad-init": Explanation(
        "scale of the initial weights",
        "Activations grow or shrink by a factor per layer in the very first forward, or weights "
        "that are all equal freeze the net.",
        "A layer multiplies the mean square of its input by fan_in times the variance of its "
        "weights, and a ReLU halves it: a variance of about 2 / fan_in keeps the size.",
        "Use kaiming initialisation with ReLU, xavier with tanh. PyTorch's own default is smaller: "
        "harmless in some layers, too small for tens of them without normalisation or residuals.",
        "nn.init.kaiming_normal_(layer.weight)\nnn.init.zeros_(layer.bias)",
    ),
    "norm-state": Explanation(
        "state or batch of a normalisation layer",
        "Running statistics are NaN, far from the data or never estimated, the model trains in "
        "evaluation mode or is evaluated in training mode, or a batch of one cannot be normalised.",
        "BatchNorm updates its running statistics in every training forward, also in a step that a "
        "GradScaler skips: one overflowing batch poisons evaluation for good while training looks "
        "healthy. momentum is the weight of the new batch in PyTorch, that of the old in others.",
        "train() before training, eval() before every evaluation; momentum 0.1; reset statistics "
        "that are lost and clean the inputs; drop_last=True against a batch of one.",
        "model.eval()\nwith torch.no_grad():\n    evaluate(model)\nmodel.train()\n"
        "for m in model.modules():  # only where statistics are lost\n"
        "    if isinstance(m, nn.modules.batchnorm._BatchNorm):\n        m.reset_running_stats()",
    ),
    "resume-state": Explanation(
        "state lost on resume",
        "After loading a checkpoint the loss jumps: optimizer moments, schedule or loss scale "
        "began anew, or no key of the checkpoint fitted the model.",
        "Only the model was saved or loaded, a scheduler was made anew and set the rate back, or "
        "strict=False hid that every name has a prefix such as module. Without its moments Adam "
        "makes steps of its full rate in every weight, which leads away from a minimum.",
        "Save and load optimizer, scheduler, scaler and random streams with the model; load with "
        "strict=True.",
        'optimizer.load_state_dict(saved["optimizer"])\n'
        'scheduler.load_state_dict(saved["scheduler"])',
    ),
    "dist-desync": Explanation(
        "replicas differ",
        "Ranks hold different weights, were given the same batches, or clip by local norms.",
        "Gradients were not all-reduced: no_sync or its flag was set at the wrong moment, the "
        "module inside the data-parallel wrapper was called, a branch differs by rank, or a seed "
        "does. Without a DistributedSampler every rank reads the same data.",
        "Set no_sync round forward and backward of all but the last accumulated batch; call the "
        "wrapper; give the DataLoader a DistributedSampler.",
        "with model.no_sync() if i < last else contextlib.nullcontext():\n"
        "    loss = model(x).sum()\n    loss.backward()",
    ),
    "backend-kernel": Explanation(
        "a kernel of the library or device",
        "The same operation on the same finite input gives different or non-finite results in "
        "some repetitions.",
        "A bug of a kernel, compiler or driver. Other causes are far more likely.",
        "Repeat the operation on its input on the CPU in float64, and with other kernels; then "
        "with another version. Report it with the input.",
        "torch.testing.assert_close(op(x).double().cpu(), op(x.double().cpu()))\n"
        "with torch.backends.mkldnn.flags(enabled=False):  # or torch.backends.cudnn.flags\n"
        "    again = op(x)",
    ),
    "hardware-fault": Explanation(
        "a bad device",
        "Replays of the same step differ from each other, on one device only.",
        "Silent data corruption by memory or arithmetic units. Code that writes to weights beside "
        "the optimizer can look the same, and is far more common.",
        "First look for code that writes to the weights. Go on from the last checkpoint before; if "
        "it comes back, run the vendor's diagnostics and leave the device out.",
        "bad = [n for n, p in model.named_parameters() if p.abs().max() > 1e6]",
    ),
    "out-of-memory": Explanation(
        "out of memory",
        "An allocation failed.",
        "Activations grow with batch and sequence length; references to losses or outputs kept in "
        "a list keep whole graphs alive.",
        "Smaller batches with accumulation, loss.item() where a number is kept, checkpointing, "
        "autocast.",
        "losses.append(loss.item())  # not the tensor, which keeps its graph",
    ),
    "unknown": Explanation(
        "cause not known",
        "The evidence does not carry a cause.",
        "",
        "Watch with --on-non-finite hold and --autopsy full; the finding says what would tell.",
        "mon = tuimon.watch(model, optimizer, activations=True)",
    ),
}
