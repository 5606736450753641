"""Analyses as messages have them: what was agreed on, arrays, and what a secure sum of a step is about."""

from collections.abc import Mapping

import numpy as np
import torch

from wardround.analyses.agreement import schema_of
from wardround.analyses.analysis import Agreed, Schema
from wardround.core.extras import needs
from wardround.core.tree import Tree
from wardround.data.records import Column
from wardround.data.serialization import write_column
from wardround.deployment.common.schema_agreement import read_columns
from wardround.deployment.common.secure_wave import Summand, Summands
from wardround.protocol import catalogue
from wardround.protocol.catalogue import AgreedAnalysis
from wardround.study.analyses import StudyAnalysis

with needs("deploy", "a study across hospitals"):
    from msgspec import convert


def write_schema(schema: Schema) -> list[catalogue.Column]:
    columns = [Column(own.name, own.kind, own.limits, levels=own.levels) for own in schema.values()]
    return [convert(write_column(column), catalogue.Column) for column in columns]


def read_schema(parts: list[catalogue.Column]) -> Schema:
    return schema_of(read_columns(parts))


def write_agreed(agreed: Agreed) -> AgreedAnalysis:
    levels = {name: list(known) for name, known in agreed.levels.items()}
    return AgreedAnalysis(columns=write_schema(agreed.schema), levels=levels, sites=list(agreed.sites))


def read_agreed(part: AgreedAnalysis, most_rows: int) -> Agreed:
    levels = {name: tuple(known) for name, known in part.levels.items()}
    return Agreed(read_schema(part.columns), levels, tuple(part.sites), most_rows)


def as_tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float64))


def as_tensors(arrays: Mapping[str, np.ndarray]) -> Tree:
    return {name: as_tensor(array) for name, array in arrays.items()}


def as_arrays(tensors: Tree) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def summands_of(number: int, chosen: StudyAnalysis, agreed: Agreed) -> Summands:
    secure = chosen.rows.privacy.secure_sum
    threshold = None if secure is None else secure.threshold
    return Summands((Summand(str(number), f"analysis {chosen.name}", agreed.sites, threshold),))
