"""Causes that lie in half precision and in how it is used."""

from __future__ import annotations

from tuimon.model.explained.entry import Explanation

PRECISION = {
    "fp16-overflow": Explanation(
        "a value beyond 65504 in float16",
        "An activation, score or sum left the range of float16 and became Inf.",
        "float16 ends at 65504. Sums over many elements, products of activations and squared "
        "norms reach it although every factor is harmless; float32 and bfloat16 would hold them.",
        "Use bfloat16; or compute that layer or loss in float32.",
        "with torch.autocast(device_type, dtype=torch.bfloat16):\n    ...\n"
        "with torch.autocast(device_type, enabled=False):\n    loss = criterion(out.float(), y)",
    ),
    "fp16-underflow": Explanation(
        "gradients below the smallest float16",
        "Gradients are exactly 0 although the loss is not: they were rounded away in float16.",
        "float16 has nothing between 0 and 6e-8. Without a loss scale, small losses and means over "
        "many elements fall below it in backward.",
        "Use a GradScaler with float16, or bfloat16, which needs none.",
        "scaler = torch.amp.GradScaler()\nscaler.scale(loss).backward()\n"
        "scaler.step(optimizer)\nscaler.update()",
    ),
    "eps-underflow": Explanation(
        "an epsilon that the dtype cannot represent",
        "A division was guarded by an epsilon that is 0 in this dtype.",
        "In float16 everything below 3e-8 rounds to 0: Adam's default eps of 1e-8 and a layer "
        "norm's 1e-12 vanish, and squares of gradients below 2e-4 with them.",
        "Keep parameters and optimizer state, or that normalisation, in float32; else choose an "
        "epsilon the dtype can hold (float16: 1e-4 for Adam, 1e-5 for a normalisation).",
        "model.float()  # and autocast for the speed\n"
        "# or: torch.optim.Adam(model.parameters(), lr=lr, eps=1e-4)",
    ),
    "bf16-stall": Explanation(
        "updates smaller than the resolution of bfloat16 weights",
        "Gradients are healthy, yet most weights stay bit for bit the same.",
        "bfloat16 keeps 8 bits: an update below about 1/512 of the weight rounds to nothing.",
        "Keep the weights in float32 and compute in bfloat16 by autocast; else round at random.",
        "model = model.float()\nwith torch.autocast(device_type, dtype=torch.bfloat16):\n    ...",
    ),
    "scaler-collapse": Explanation(
        "the GradScaler backs off at every step",
        "Every update is skipped and the loss scale keeps halving, in the end to exactly 0, "
        "without an error.",
        "The gradients are non-finite at any scale: the fault is in the data or the forward, and a "
        "smaller scale cannot mend it.",
        "Find what is non-finite without the scale (inputs beyond 65504, a NaN in the data, an "
        "overflowing layer) and mend that.",
        "with torch.autocast(device_type, enabled=False):\n    out = model(x.float())\n"
        "assert torch.isfinite(out).all()  # fails: the data or the model; passes: float16",
    ),
    "amp-order": Explanation(
        "order or dtype rules of mixed precision broken",
        "Gradients were clipped or read while they carried the loss scale, unscale_ was called "
        "twice, or trainable parameters are float16.",
        "Between scaler.scale(loss).backward() and scaler.unscale_(optimizer) gradients are larger "
        "by the scale (65536 at first): clipping them to 1 makes the step that much too small. "
        "Adam hides it, SGD stands still.",
        "Call scaler.unscale_(optimizer) once, after backward and before clipping; keep trainable "
        "parameters in float32.",
        "scaler.scale(loss).backward()\nscaler.unscale_(optimizer)\n"
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
        "scaler.step(optimizer)\nscaler.update()",
    ),
    "clip-nonfinite": Explanation(
        "clipping by a norm that is not finite",
        "One gradient made the total norm NaN or Inf, and clipping multiplied every gradient by "
        "it.",
        "clip_grad_norm_ scales all gradients by max_norm / norm: with a NaN norm all of them "
        "become NaN; with an infinite one all that is finite becomes 0, and what is infinite "
        "becomes NaN. A finite gradient of 1e20 is enough: its square is infinite in float32. "
        "Clipping cannot mend what is not finite.",
        "Mend the first non-finite gradient; until then let clip_grad_norm_ raise, or leave that "
        "update out.",
        "torch.nn.utils.clip_grad_norm_(params, 1.0, error_if_nonfinite=True)",
    ),
}
