"""Causes that lie in how the optimisation moves."""

from __future__ import annotations

from tuimon.model.explained.entry import Explanation

DYNAMICS = {
    "lr-too-high": Explanation(
        "learning rate too high",
        "Loss and gradient grow by a factor at every step, or the loss jumps up and stays at or "
        "above the level of guessing; no single operation is at fault.",
        "Each step overshoots: the update is longer than the curvature of the loss allows. A rate "
        "made for another optimizer, batch size, model or number of devices does this. Adam moves "
        "every weight by about the rate itself, whatever the gradient.",
        "Start again with a learning rate 10 to 20 times lower, or warm it up. With plain SGD, "
        "clipping the gradient norm helps as well; Adam's update does not depend on the "
        "gradient's scale, so that clipping does not shorten it. Weights and moments that were "
        "driven away do not come back: go on from the last good checkpoint.",
        "optimizer = type(optimizer)(model.parameters(), lr=0.1 * lr)",
    ),
    "lr-schedule": Explanation(
        "learning-rate schedule is wrong",
        "The rate that the updates really used stays at 0 or next to it, falls to 0 too soon, "
        "rises without end, or starts at full height where warm-up is needed.",
        "A factor divided as integers is 0 during warm-up; scheduler.step() per batch in the place "
        "of per epoch ends a schedule early; a gamma above 1 or a factor without a bound raises "
        "the rate for ever; ReduceLROnPlateau in the wrong mode lowers it while the loss falls; "
        "deep post-norm transformers under Adam need a warm-up.",
        "Print the rate per step, then call scheduler.step() where its unit is meant (after the "
        "epoch, or after each update), mend its factor, or add a warm-up.",
        "scheduler = torch.optim.lr_scheduler.LambdaLR(\n"
        "    optimizer, lambda step: min(1.0, (step + 1) / warmup_steps)\n)",
    ),
    "opt-dynamics": Explanation(
        "an optimizer that does not settle",
        "Late in an otherwise good training the loss spikes and recovers, again and again, the "
        "gradient norm growing for some steps before; or a setting of the optimizer (momentum, "
        "betas, eps, weight decay) makes its steps far longer or shorter than the rate says.",
        "Near a minimum the adaptive step is too large for the local curvature: it oscillates and "
        "grows until the loss jumps; the data is not the reason. A momentum of 0.999 adds up a "
        "thousand updates; an eps above the gradients divides the step by it.",
        "Put a setting that the evidence names back to its default. With the defaults, lower or "
        "decay the learning rate near convergence; a smaller beta2 is no safe remedy, and "
        "clipping does not shorten Adam's steps.",
        "scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total_steps)",
    ),
    "grad-explode": Explanation(
        "gradient explodes through time or depth",
        "The gradient norm jumps by orders of magnitude within one or two steps, most of it in a "
        "recurrent or very deep part.",
        "Backward multiplies one Jacobian per time step or layer; once their gain exceeds 1 the "
        "product grows exponentially.",
        "Clip the gradient norm before every step (under Adam too: one huge gradient would fill "
        "its moments for a thousand updates); then orthogonal recurrent weights, a gated cell, "
        "shorter sequences, or normalisation between the layers.",
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # before optimizer.step()",
    ),
    "grad-vanish": Explanation(
        "gradient vanishes towards the input",
        "Gradient norms fall by a factor per layer towards the input; the first layers stand still "
        "and the loss stays where chance puts it.",
        "Saturating activations have small derivatives (a sigmoid's is at most 1/4), and their "
        "product over the layers goes to 0.",
        "ReLU or GELU in the place of sigmoid, normalisation layers, residual connections; over "
        "time a gated cell (LSTM, GRU) or shorter sequences. A higher learning rate does not help.",
        "block = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU())",
    ),
    "dead-relu": Explanation(
        "units that output 0 for every sample",
        "Whole layers of ReLUs give 0 for every input; the gradient of the weights below is "
        "exactly 0, and only later biases still move.",
        "A too large update, or biases that begin far below 0, put every pre-activation where "
        "ReLU has no gradient: nothing brings them back.",
        "Begin with biases of 0, lower the learning rate and start again; LeakyReLU or GELU keep "
        "a gradient.",
        "act = nn.LeakyReLU(0.01)  # in the place of nn.ReLU()",
    ),
    "loss-scaling": Explanation(
        "loss has the wrong scale",
        "Gradient and effective learning rate grow with the batch size, the number of accumulated "
        "batches or a weight of the loss; or they shrink, because a mean is divided again.",
        'reduction="sum", losses of accumulated batches that are not divided by their number, a '
        "mean that is divided by the batch size once more, a summand with a factor of thousands. "
        "SGD feels it in full; Adam hides most of it, but not its eps and not clipping.",
        "Take the mean once, divide the loss by the number of accumulated batches, and bring the "
        "summands to one order of magnitude.",
        'criterion = nn.MSELoss(reduction="mean")\n(loss / accumulation_steps).backward()',
    ),
}
