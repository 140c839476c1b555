"""Causes that lie in the arithmetic of one operation."""

from __future__ import annotations

from tuimon.model.explained.entry import Explanation

NUMERICS = {
    "log-zero": Explanation(
        "logarithm of 0, or of almost 0",
        "A logarithm of 0 gives -Inf, and one multiplication by 0 later NaN. Of a number below "
        "about 3e-39 it is finite, and its derivative 1/x is not.",
        "A softmax or sigmoid of a confident model underflows to 0 or nearly so, or rounds to "
        "exactly 1, or a ratio in the data is 0. Clipping gradients does not reach it: what the "
        "logarithm is given is wrong. In float32 a bound of 1 - 1e-8 is 1.",
        "Compute the logarithm from the logits (log_softmax, logsigmoid, cross_entropy, "
        "binary_cross_entropy_with_logits); else bound the argument away from 0, by 1e-6 or more "
        "where it is also bounded away from 1.",
        "loss = F.cross_entropy(logits, target)  # in the place of log(softmax(logits))\n"
        "# or: torch.log(p.clamp(min=1e-6))",
    ),
    "sqrt-norm-zero": Explanation(
        "infinite derivative of a root at 0",
        "The loss is finite, the gradient is NaN: a square root, a hand-written norm or a "
        "fractional power was differentiated at 0 or next to it.",
        "d sqrt(x)/dx is 1 / (2 sqrt(x)), infinite at 0; times a zero from the chain rule it is "
        "NaN. Identical pairs, zero vectors and constant features lead there; acos and asin have "
        "the same at 1.",
        "Put an epsilon inside the root, or use torch.linalg.vector_norm, whose gradient at 0 is "
        "0; the squared distance needs no root at all.",
        "d = (diff.pow(2).sum(-1) + 1e-12).sqrt()\n"
        "# or: d = torch.linalg.vector_norm(diff, dim=-1)",
    ),
    "div-zero": Explanation(
        "division by 0, or by almost 0",
        "A denominator was 0 or so small that the quotient or its derivative overflows, or a "
        "standard deviation was taken of a single element; or a vector of zeros was normalised, "
        "whose gradient is finite and huge.",
        "Constant or empty slices have no spread; a batch of one has no unbiased standard "
        "deviation (division by n - 1 = 0), which is NaN. F.normalize divides a zero vector by its "
        "eps of 1e-12 and cosine_similarity by 1e-8: the gradient is as many times larger.",
        "Add an epsilon to the denominator, or raise the eps of F.normalize to 1e-6; drop a last "
        "batch of one, or use correction=0 where a slice may hold one element.",
        "x = (x - x.mean()) / (x.std(correction=0) + 1e-6)\n"
        "loader = torch.utils.data.DataLoader(data, batch_size=64, drop_last=True)",
    ),
    "masked-softmax": Explanation(
        "softmax over a row with every entry masked",
        "One row of attention scores is -Inf throughout; its softmax is 0/0 = NaN, and backward "
        "carries it into shared weights even where the loss ignores the row.",
        "A sample is padding from end to end, or a mask has the wrong sense or shape.",
        "Drop samples without a single valid position, or leave one key of each row unmasked; for "
        "nn.MultiheadAttention need_weights=False uses a kernel that is safe here.",
        "keep = ~padding_mask.all(dim=1)\nx, padding_mask = x[keep], padding_mask[keep]",
    ),
    "where-trap": Explanation(
        "the branch that torch.where did not select",
        "Forward is finite everywhere, the gradient is NaN: the branch that was not selected "
        "overflowed or has an infinite derivative.",
        "torch.where differentiates both branches and multiplies the unwanted one by 0; 0 times "
        "Inf is NaN. Masks applied after the operation do not help.",
        "Make the argument safe before the operation, with a where or clamp of its own.",
        "safe = torch.where(mask, x, torch.ones_like(x))\ny = torch.where(mask, f(safe), other)",
    ),
    "domain-error": Explanation(
        "argument outside the domain of a function",
        "A power with a fractional exponent got a negative base, or sqrt, log, acos, asin or "
        "atanh an argument outside of its domain.",
        "Network outputs are unbounded; rounding carries values that should lie within [-1, 1] or "
        "above 0 a little outside.",
        "Clamp the argument to the inside of the domain, or let the output be positive by "
        "softplus or exp.",
        "y = pred.clamp(min=1e-4) ** (1 / 2.2)\nangle = torch.acos(cos.clamp(-1 + 1e-6, 1 - 1e-6))",
    ),
    "exp-overflow": Explanation(
        "exponential of a large number",
        "exp received more than about 88 (float32) or 11 (float16) and gave Inf.",
        "A log-variance, log-rate or score is unbounded; one heavy-tailed row is enough.",
        "Use the function that is meant: softplus for log(1 + exp(x)), logsumexp, log_softmax or "
        "softmax for sums of exponentials; else clamp the argument, and standardise heavy-tailed "
        "inputs.",
        "std = torch.exp(0.5 * logvar.clamp(-30.0, 20.0))\n"
        "# or: F.softplus(x), torch.logsumexp(scores, dim=-1)",
    ),
    "zero-times-inf": Explanation(
        "0 times Inf",
        "An intended infinity (a mask, the logarithm of a probability of 0) met a factor of 0.",
        "p * log p is 0 * -Inf for impossible events. nan_to_num afterwards mends the number "
        "but not its gradient.",
        "Replace the infinity before the product where the factor is 0, or use "
        "torch.special.entr, torch.xlogy or torch.distributions.Categorical.",
        "logp = torch.where(legal, logp, torch.zeros_like(logp))\n"
        "entropy = -(p * logp).sum(-1)  # or: torch.special.entr(p).sum(-1)",
    ),
    "empty-reduction": Explanation(
        "mean over nothing",
        "A mean had no element: every target of the batch is ignored, or a mask selects none. The "
        "loss is NaN; its gradients may be exactly 0, so the training itself can be unharmed.",
        "0 divided by a count of 0. Truncated prompts and rare masks lead there. Added to other "
        "losses, or to a running mean, the NaN spreads.",
        "Skip batches without a valid element, or divide a sum by max(count, 1).",
        'loss = F.cross_entropy(logits, y, reduction="sum") / (y != -100).sum().clamp(min=1)',
    ),
    "custom-backward": Explanation(
        "hand-written backward is unstable",
        "A torch.autograd.Function returned a non-finite gradient from finite ones.",
        "Its formula divides by, or takes the root or logarithm of, something that can be 0, or "
        "overflows; PyTorch's own formulas handle such limits, a hand-written one has to.",
        "Guard the formula at its limits and check it with torch.autograd.gradcheck in float64.",
        "torch.autograd.gradcheck(MyFunction.apply, (x.double().requires_grad_(),))",
    ),
}
