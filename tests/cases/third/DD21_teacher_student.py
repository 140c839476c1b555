import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)


def mlp(i, o):
    return nn.Sequential(nn.Linear(i, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, o))


def main():
    torch.manual_seed(33)
    teacher, student = mlp(6, 8), mlp(6, 8)
    teacher_opt = torch.optim.Adam(teacher.parameters(), lr=3e-3)
    student_opt = torch.optim.Adam(student.parameters(), lr=3e-3)
    centres = 2 * torch.randn(8, 6)
    for step in range(200):
        label = torch.randint(0, 8, (64,))
        x = centres[label] + 0.5 * torch.randn(64, 6)
        teacher_loss = F.cross_entropy(teacher(x), label)
        teacher_opt.zero_grad()
        teacher_loss.backward()
        teacher_opt.step()

        with torch.no_grad():
            soft = (teacher(x) / 2).softmax(-1)
        student_loss = F.kl_div((student(x) / 2).log_softmax(-1), soft, reduction="batchmean") * 4
        student_loss.backward()
        student_opt.zero_grad()
        student_opt.step()
        if step % 20 == 0:
            print(f"step {step} teacher {teacher_loss.item():.4f} student {student_loss.item():.4f}")


main()
