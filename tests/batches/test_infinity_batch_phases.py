"""`memlab.InfinityBatch` with several models: selection by phase, and a GAN that trains as in a plain loop."""

import copy
import textwrap

import memlab as package
import pytest
import torch
from conftest import ROOT
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from trainings import Reader, assert_same, by_hand, digits, training


def networks():
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(100, 16), nn.Tanh(), nn.Linear(16, 6))
    discriminator = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    return generator, discriminator


def real_samples():
    generator = torch.Generator().manual_seed(1)
    return DataLoader(TensorDataset(torch.randn(50, 6, generator=generator) + 2, torch.zeros(50)), batch_size=20)


def adam(model):
    return torch.optim.Adam(model.parameters(), 0.01)


def gan_by_hand(generator, discriminator):
    of_g, of_d = adam(generator), adam(discriminator)
    for real, _ in real_samples():
        noise, ones = torch.randn(len(real), 100), torch.ones(len(real), 1)
        outputs = discriminator(torch.cat([real, generator(noise).detach()]))
        functional.binary_cross_entropy_with_logits(outputs, torch.cat([ones, 0 * ones])).backward()
        of_d.step()
        functional.binary_cross_entropy_with_logits(discriminator(generator(noise)), ones).backward()
        of_g.step()
        of_d.zero_grad()
        of_g.zero_grad()


def test_the_documented_gan_trains_as_by_hand(recwarn):
    # GIVEN the loop of the documentation, in micro-batches of 7, and a twin
    page = (ROOT / "docs" / "big-batches.md").read_text()
    section = page.partition("## Several models\n")[2].partition("    ib = ")[2].partition("\n`ib.epoch()`")[0]
    generator, discriminator = networks()
    twins = copy.deepcopy((generator, discriminator))
    names = {
        "generator": generator,
        "discriminator": discriminator,
        "adam_of_g": adam(generator),
        "adam_of_d": adam(discriminator),
        "dataloader": real_samples(),
        "torch": torch,
        "nn": nn,
        "memlab": package,
    }
    made, _, loop = textwrap.dedent("    ib = " + section).partition("\n")
    # WHEN both are trained with the same noise
    exec(made, names)
    ib = names["ib"]
    ib.micro_batch, ib.warnings_level = 7, "strict"
    torch.manual_seed(3)
    exec(loop, names)
    torch.manual_seed(3)
    gan_by_hand(*twins)
    # THEN they are equal, and no step was skipped
    assert_same(generator, twins[0])
    assert_same(discriminator, twins[1])
    # AND the losses of both phases were recorded
    assert len(ib.statistics()) == 6 and {row["phase"] for row in ib.statistics()} == {"d", "g"}
    # AND no model stays frozen
    assert all(one.requires_grad for model in (generator, discriminator) for one in model.parameters())


def test_a_phase_trains_its_model_only():
    # GIVEN two models in lists, with a frozen layer each, and one criterion
    models = [Reader(), Reader()]
    for model in models:
        model.picture.bias.requires_grad_(False)
    twins = copy.deepcopy(models)
    ib = package.InfinityBatch(models, [torch.optim.Adam(model.parameters()) for model in models], verbose=False)
    ib.criterion, ib.dataloader = nn.CrossEntropyLoss(), DataLoader(digits(), batch_size=20)
    # WHEN one is trained
    with ib.phase(1):
        assert not models[0].answer.weight.requires_grad and ib.forward_device.type == "cpu"
        ib.train(2)
        assert ib.evaluate()["loss"] < ib.losses[0][0][0] and len(ib.parameters_table()) == 3
    by_hand(twins[1], 2)
    # THEN it equals a plain loop's result, and the other model and frozen layers are unchanged
    assert_same(models[1], twins[1])
    assert_same(models[0], twins[0])
    for model in models:
        assert model.answer.weight.requires_grad and not model.picture.bias.requires_grad
    # AND an optimizer of the other model is refused
    ib.optimizer = ib.optimizer[::-1]
    with ib.phase(1), pytest.raises(RuntimeError, match="none of the model's parameters"):
        ib.epoch()


def test_a_phase_is_to_be_chosen():
    ib, _ = training()
    with pytest.raises(ValueError, match="no phase 'd': there is one model"), ib.phase("d"):
        pass
    ib.model = {"g": Reader(), "d": Reader()}
    for use in (ib.epoch, ib.batch_, ib.loss, ib.backward, ib.step, ib.zero_grad, ib.parameters_table):
        with pytest.raises(RuntimeError, match=r"several models, .*: choose one of 'g', 'd', as in: with ib.phase\('g'\)"):
            next(iter(ib.dataloader))
            use()
    with pytest.raises(ValueError, match="no phase 'e'"), ib.phase("e"):
        pass
    ib.optimizer = {"g": torch.optim.Adam(ib.model["g"].parameters())}
    with ib.phase("d"), pytest.raises(RuntimeError, match="no optimizer for the phase 'd'"):
        ib.epoch()
