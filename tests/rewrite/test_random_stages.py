"""Random graphs with collectives: stages follow each other, and moved ops make no collective wait for another one."""

from __future__ import annotations

import random

import networkx as nx
import pytest

from astitch.graph.collectives import communicates
from astitch.graph.dimensions import is_embedded
from astitch.graph.ir import ArrayType, Graph
from astitch.graph.ops import OPS, Kind
from astitch.rewrite import cut_stages
from astitch.rewrite.recompute import Staged
from astitch.stitch_scope import Left, choose_stages
from tests.graphs import GraphBuilder
from tests.rewrite.test_cut_stages import send

SIZES = [(4096, 1024), (8192, 512), (512, 64), (64, 64)]


class Drawing:
    """A graph that grows by random ops: matrices of one shape, vectors of their rows and columns, numbers."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.g = rng, GraphBuilder()
        self.rows, self.columns = rng.choice(SIZES)
        self.shapes = {
            "whole": (self.rows, self.columns),
            "row": (self.rows,),
            "column": (self.columns,),
            "one": (),
        }
        self.values = {kind: [self.g.parameter(self.write(kind))] for kind in self.shapes}
        self.values["whole"] += [self.g.parameter(self.write("whole")) for _ in range(2)]
        self.weight = self.g.parameter(f"f32[{self.columns},{self.columns}]")

    def write(self, kind: str) -> str:
        return f"f32[{','.join(map(str, self.shapes[kind]))}]"

    def choose(self, kind: str) -> str:
        """Late values more often."""
        known = self.values[kind]
        return known[-1 - min(len(known) - 1, int(self.rng.expovariate(0.5)))]

    def build(self) -> Graph:
        for _ in range(self.rng.randint(4, 25)):
            self.add()
        if self.rng.random() < 0.5:
            self.add_loss()
        for _ in range(self.rng.randint(0, 10)):
            self.add()
        nodes = self.g.nodes
        made = [n.name for n in nodes.values() if n.operands and isinstance(n.type, ArrayType)]
        read = {operand for node in nodes.values() for operand in node.operands}
        some = self.rng.sample(made, self.rng.randint(0, min(2, len(made))))
        return self.g.build(*dict.fromkeys([*(n for n in made if n not in read), *some]))

    def add(self) -> None:
        g, kind = self.g, self.rng.choices([*self.shapes], [4, 3, 2, 2])[0]
        part = self.rng.choice(["row", "column", "one"])
        dimensions = {"row": (0,), "column": (1,), "one": ()}[part]
        match self.rng.choices(
            ["op", "sum", "spread", "send", "dot", "splat", "pair"], [12, 6, 5, 4, 2, 1, 1]
        )[0]:
            case "op":
                read = [self.choose(kind) for _ in range(self.rng.randint(1, 2))]
                made = g.op("multiply" if read[1:] else "tanh", self.write(kind), *read)
                self.values[kind].append(made)
            case "sum":
                summed = tuple(d for d in (0, 1) if d not in dimensions)
                self.values[part].append(g.reduce(self.choose("whole"), summed, "add"))
            case "spread":
                whole = self.shapes["whole"]
                self.values["whole"].append(g.broadcast(self.choose(part), whole, dimensions))
            case "send":
                self.values[kind].append(self.send(self.choose(kind)))
            case "dot":
                self.values["whole"].append(g.dot(self.choose("whole"), self.weight, (1,), (0,)))
            case "splat":
                self.values["whole"].append(g.splat(2.0, self.write("whole")))
            case "pair":
                order = g.iota(f"s32[{self.rows},{self.columns}]", 1)
                found = g.arg_max(self.choose("whole"), order, (1,))
                self.values["row"].append(g.element(found, 0))

    def add_loss(self) -> None:
        """A value that is sent, and a sum of it and others that is sent with what follows."""
        g, whole = self.g, self.write("whole")
        error = g.op("subtract", whole, self.choose("whole"), self.choose("whole"))
        sent = self.send(g.op("tanh", whole, error))
        made = error
        for _ in range(self.rng.randint(1, 2)):
            others = [error, self.choose("whole"), self.send(self.choose("whole"))]
            made = g.op("multiply", whole, made, self.rng.choice(others))
        self.values["whole"].append(sent)
        self.send(g.reduce(made, self.rng.choice([(1,), (0, 1)]), "add"), "max")
        self.send(g.reduce(sent, (0, 1), "add"), "max")

    def send(self, value: str, kin: str | None = None) -> str:
        kin = self.rng.choice(["", "f32", "max"]) if kin is None else kin
        return send(self.g, value, f"sent.{len(self.g.nodes)}", kin)


def list_waits(staged: Staged) -> dict[str, set[str]]:
    """For each collective those that it waits for.  Ops of one stage that hand each other arrays end together."""
    graph, stage = staged.graph, staged.stage
    kernels = nx.utils.UnionFind(graph.nodes)
    numbers = cut_stages._find_numbers(graph)

    def is_computed(name: str) -> bool:
        return name not in staged.outside and OPS[graph[name].op].kind is not Kind.SOURCE

    edges = [(o, n.name) for n in graph for o in n.operands if not is_embedded(graph, o)]
    for one, other in edges:
        if (
            is_computed(one)
            and is_computed(other)
            and one not in numbers
            and stage[one] == stage[other]
        ):
            kernels.union(one, other)
    order = nx.DiGraph([(kernels[one], kernels[other]) for one, other in edges])
    order.add_nodes_from(kernels)
    sent = [node.name for node in graph if communicates(node)]
    return {name: nx.ancestors(order, kernels[name]).intersection(sent) for name in sent}


def examine(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Did ops move?"""
    moved = choose_stages(Left(graph))
    for node in graph:
        for operand in node.operands:
            assert is_embedded(graph, operand) or moved.stage[operand] <= moved.stage[node.name]
    with monkeypatch.context() as patch:
        patch.setattr(cut_stages, "_find_passing", lambda *_: ())
        patch.setattr(cut_stages, "_move_short", lambda graph, parts, places, awaiting: places)
        stayed = choose_stages(Left(graph))
    waits = list_waits(stayed)
    for name, found in list_waits(moved).items():
        assert found <= waits[name], name
    return moved.stage != stayed.stage


def test_moved_ops_follow_what_they_read_and_make_no_collective_wait(monkeypatch):
    count = sum(examine(Drawing(random.Random(seed)).build(), monkeypatch) for seed in range(150))
    assert count > 20
