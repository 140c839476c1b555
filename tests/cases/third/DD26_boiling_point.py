import torch
from torch import nn
from torch.func import functional_call, grad_and_value

torch.set_num_threads(1)


def weather(n=700):
    height = 3500 * torch.rand(n)
    pressure = 101325 * torch.exp(-height / 8400)
    humidity = torch.rand(n)
    boiling = 100 - height / 300 + humidity
    target = (boiling - boiling.mean()) / boiling.std()
    return torch.stack([pressure, humidity], 1), target


def main():
    torch.manual_seed(101)
    x, y = weather()
    module = nn.Sequential(nn.Linear(2, 24), nn.ReLU(), nn.Linear(24, 1))
    params = {k: v.detach() for k, v in module.named_parameters()}

    def objective(p, inputs, target):
        return nn.functional.mse_loss(functional_call(module, p, (inputs,)).squeeze(-1), target)

    step_fn = grad_and_value(objective)
    for step in range(200):
        pick = torch.randint(0, len(x), (70,))
        grads, loss = step_fn(params, x[pick], y[pick])
        params = {k: p - 0.05 * grads[k] for k, p in params.items()}
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.5g}")


main()
