"""Series of several optimizers are told apart by whose parameters they are of."""

from __future__ import annotations

from tuimon.model.records import LayerTable
from tuimon.view.owners import owner_of

SEVERAL = {"loss": 0, "loss@1": 0, "accuracy": 0}


def table(*names: str, owners: list[int]) -> LayerTable:
    return LayerTable(0, list(names), optimizer_index=owners)


def test_an_optimizer_has_the_name_of_the_model_that_it_updates() -> None:
    gan = table("Generator.0.weight", "Generator.0.bias", "Critic.0.weight", owners=[1, 1, 0])
    assert owner_of("loss", SEVERAL, gan) == "Critic"
    assert owner_of("lr/0@1", SEVERAL, gan) == "Generator"
    assert owner_of("loss@2", SEVERAL, gan) == ""
    alike = table("net.a", "net.b", "net.c", owners=[0, 1, 1])
    assert owner_of("loss@1", SEVERAL, alike) == "of 2 parameters"


def test_one_optimizer_needs_no_name() -> None:
    assert owner_of("loss", {"loss": 0}, table("a.w", owners=[0])) == ""
    assert owner_of("loss@1", SEVERAL, None) == ""
