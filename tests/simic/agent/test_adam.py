"""Our Adam takes the steps of PyTorch's, and never reads a number back."""

import torch

from esper.simic.agent.adam import Adam


def test_it_takes_the_same_steps_as_pytorch() -> None:
    generator = torch.Generator().manual_seed(0)
    mine = [torch.randn(shape, generator=generator).double() for shape in ((3, 4), (5,), ())]
    theirs = [tensor.clone() for tensor in mine]
    ours = Adam(map(torch.nn.Parameter, mine), lr=0.02, eps=1e-5)
    torchs = torch.optim.Adam(map(torch.nn.Parameter, theirs), lr=0.02, eps=1e-5)
    schedules = [torch.optim.lr_scheduler.StepLR(o, 10, 0.5) for o in (ours, torchs)]
    for step in range(40):
        for optimizer in (ours, torchs):
            parameters = optimizer.param_groups[0]["params"]
            for parameter in parameters[: 2 if step % 3 else 3]:
                parameter.grad = torch.cos(step * parameter.detach()) + 0.3
            optimizer.step()
            optimizer.zero_grad()
        for schedule in schedules:
            schedule.step()
    # A parameter without a gradient stays where it is; PyTorch counts its steps apart.
    for a, b in zip(mine[:2], theirs[:2], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_no_number_is_read_back() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = Adam([parameter], lr=0.1)
    with torch.profiler.profile() as profiler:
        for _ in range(3):
            parameter.grad = torch.ones(3)
            optimizer.step()
    names = {event.name for event in profiler.events() or []}
    assert "aten::addcdiv_" in names
    assert not names & {"aten::item", "aten::_local_scalar_dense"}


def test_a_saved_optimizer_goes_on_the_same() -> None:
    def run(optimizer: Adam, parameter: torch.nn.Parameter, steps: int) -> None:
        for _ in range(steps):
            parameter.grad = parameter.detach().sin()
            optimizer.step()

    whole = torch.nn.Parameter(torch.ones(4))
    run(Adam([whole], lr=0.1), whole, 6)
    first = torch.nn.Parameter(torch.ones(4))
    saved = Adam([first], lr=0.1)
    run(saved, first, 3)
    second = torch.nn.Parameter(first.detach().clone())
    resumed = Adam([second], lr=0.5)
    resumed.load_state_dict(saved.state_dict())
    run(resumed, second, 3)
    assert torch.equal(whole, second)
