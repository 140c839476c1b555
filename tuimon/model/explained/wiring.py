"""Causes that lie in how model, loss, optimizer and state are connected, and beyond one process."""

from __future__ import annotations

from tuimon.model.explained.entry import Explanation

WIRING = {
    "loss-api": Explanation(
        "loss used with the wrong shape or kind of input",
        "The loss runs but means something else: (N, 1) against (N) broadcasts to (N, N), "
        "cross_entropy gets probabilities, BCE gets logits.",
        "Shapes that broadcast and functions that apply their own softmax accept the mistake "
        "silently; the loss then has a floor that no training passes.",
        "Give both sides the same shape; give cross_entropy raw logits.",
        "loss = F.mse_loss(pred.squeeze(-1), target)\nloss = F.cross_entropy(logits, target)",
    ),
    "zero-grad": Explanation(
        "zero_grad missing or in the wrong place",
        "No update happens because gradients are cleared between backward and step, or they pile "
        "up because they never are.",
        "optimizer.step() uses what lies in .grad at that moment.",
        "Clear before backward, once per update.",
        "optimizer.zero_grad()\nloss.backward()\noptimizer.step()",
    ),
    "params-stuck": Explanation(
        "parameters that never change",
        "Trainable parameters get no gradient, or are not in the optimizer.",
        "The graph is cut (detach, no_grad, re-entrant checkpointing of inputs that need no "
        "gradient), or the optimizer was built before the parameters were replaced.",
        "Build the optimizer after the last change of the model; use_reentrant=False for "
        "checkpointing; look for detach.",
        "checkpoint(block, x, use_reentrant=False)\n"
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
        "The variance of a layer's output is fan_in times the variance of its weights: it must be "
        "about 2 / fan_in for ReLU.",
        "Use PyTorch's default, or kaiming / xavier initialisation.",
        "nn.init.kaiming_normal_(layer.weight)\nnn.init.zeros_(layer.bias)",
    ),
    "norm-state": Explanation(
        "state or batch of a normalisation layer",
        "Running statistics are NaN or far from the data, or a batch of one cannot be normalised.",
        "BatchNorm updates its running statistics in forward, also in a step that a GradScaler "
        "skips: one overflowing batch poisons evaluation for good while training looks healthy.",
        "Reset the statistics and clean the inputs; drop_last=True against a batch of one.",
        "for m in model.modules():\n    if isinstance(m, nn.modules.batchnorm._BatchNorm):\n"
        "        m.reset_running_stats()",
    ),
    "resume-state": Explanation(
        "state lost on resume",
        "After loading a checkpoint the loss jumps: optimizer moments, schedule or loss scale "
        "began anew.",
        "Only the model was saved or loaded.",
        "Save and load optimizer, scheduler, scaler and random streams with the model.",
        'optimizer.load_state_dict(saved["optimizer"])\n'
        'scheduler.load_state_dict(saved["scheduler"])',
    ),
    "dist-desync": Explanation(
        "replicas differ",
        "Ranks hold different weights or clip by local norms.",
        "Gradients were not all-reduced: no_sync or its flag was set at the wrong moment, a branch "
        "differs by rank, or a seed does.",
        "Set no_sync round forward and backward of all but the last accumulated batch.",
        "with model.no_sync() if i < last else contextlib.nullcontext():\n"
        "    loss = model(x).sum()\n    loss.backward()",
    ),
    "backend-kernel": Explanation(
        "a kernel of the library or device",
        "The same operation on the same finite input gives different or non-finite results in "
        "some repetitions.",
        "A bug of a kernel, compiler or driver. Other causes are far more likely.",
        "Repeat on the CPU in float64, then with another version; report it with the input.",
    ),
    "hardware-fault": Explanation(
        "a bad device",
        "Replays of the same step differ from each other, on one device only.",
        "Silent data corruption by memory or arithmetic units.",
        "Run the vendor's diagnostics and leave the device out.",
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
