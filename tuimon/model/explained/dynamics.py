"""Causes that lie in how the optimisation moves."""

from __future__ import annotations

from tuimon.model.explained.entry import Explanation

DYNAMICS = {
    "lr-too-high": Explanation(
        "learning rate too high",
        "Loss and gradient grow by a factor at every step from the start; no single operation is "
        "at fault.",
        "Each step overshoots: the update is longer than the curvature of the loss allows. A rate "
        "made for another batch size, model or number of devices does this.",
        "Lower the learning rate 10 to 20 times, or warm it up. With plain SGD, clipping the "
        "gradient norm helps as well; Adam's update does not depend on the gradient's scale.",
        'for group in optimizer.param_groups:\n    group["lr"] *= 0.1',
    ),
    "lr-schedule": Explanation(
        "learning-rate schedule is wrong",
        "The rate that the updates really used stays at 0, falls to 0 too soon, starts at full "
        "height where warm-up is needed, or steps at the wrong place.",
        "A factor divided as integers is 0 during warm-up; scheduler.step() per batch in the place "
        "of per epoch ends a schedule early; deep post-norm transformers need a warm-up.",
        "Look at the rate per step, then mend the factor, or add a warm-up.",
        "scheduler = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup_steps))",
    ),
    "opt-dynamics": Explanation(
        "an adaptive optimizer becomes unstable",
        "Late in an otherwise good training the loss spikes and recovers, again and again; the "
        "gradient norm grows for some steps before the loss moves.",
        "Near a minimum the adaptive step is too large for the local curvature: it oscillates and "
        "grows until the loss jumps. The data is not the reason.",
        "Lower or decay the learning rate near convergence. A smaller beta2 is no safe remedy.",
        "scheduler = CosineAnnealingLR(optimizer, T_max=total_steps)",
    ),
    "grad-explode": Explanation(
        "gradient explodes through time or depth",
        "The gradient norm jumps by orders of magnitude within one or two steps, most of it in a "
        "recurrent or very deep part.",
        "Backward multiplies one Jacobian per time step or layer; once their gain exceeds 1 the "
        "product grows exponentially.",
        "Clip the gradient norm; then orthogonal recurrent weights, a gated cell, shorter "
        "sequences, or normalisation.",
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # before optimizer.step()",
    ),
    "grad-vanish": Explanation(
        "gradient vanishes towards the input",
        "Gradient norms fall by a factor per layer towards the input; the first layers stand still "
        "and the loss stays where chance puts it.",
        "Saturating activations have small derivatives (a sigmoid's is at most 1/4), and their "
        "product over the layers goes to 0.",
        "ReLU, GELU or tanh in the place of sigmoid, normalisation layers, residual connections.",
        "nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), ...)",
    ),
    "dead-relu": Explanation(
        "units that output 0 for every sample",
        "Whole layers of ReLUs give 0 for every input; the gradient of the weights below is "
        "exactly 0, and only later biases still move.",
        "A too large update pushed every pre-activation below 0, where ReLU has no gradient: "
        "nothing brings them back.",
        "Lower the learning rate and start again; LeakyReLU or GELU keep a gradient.",
        "nn.LeakyReLU(0.01)  # in the place of nn.ReLU()",
    ),
    "loss-scaling": Explanation(
        "loss is a sum where a mean is meant",
        "Gradient and effective learning rate grow with the batch size or the number of "
        "accumulated batches.",
        'reduction="sum", or losses of accumulated batches that are not divided by their number.',
        "Take the mean, or divide the loss by the number of accumulated batches.",
        'criterion = nn.MSELoss(reduction="mean")\n(loss / accumulation_steps).backward()',
    ),
}
