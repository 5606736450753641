"""Ways to form sites. A new one is one file and one line here."""

from collections.abc import Callable

from wardround.data.partition.age_windows import age_windows
from wardround.data.partition.by_column import by_column
from wardround.data.partition.by_hospital import by_hospital
from wardround.data.partition.dirichlet import dirichlet
from wardround.data.partition.iid import iid
from wardround.data.partition.partition import Partitioner
from wardround.data.partition.quantity import quantity
from wardround.data.partition.specialty import specialty

PARTITIONERS: dict[str, Callable[..., Partitioner]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "quantity": quantity,
    "age-windows": age_windows,
    "specialty": specialty,
    "by-column": by_column,
    "by-hospital": by_hospital,
}

__all__ = ["PARTITIONERS", "Partitioner"]
