"""Help texts are read as markup: what stands in square brackets must reach the reader all the same."""

from collections.abc import Iterator

import click
import pytest
import typer
from rich.text import Text

from wardround.cli.main import app


def commands(found: click.Command, path: str = "wardround") -> Iterator[tuple[str, click.Command]]:
    yield path, found
    if isinstance(found, click.Group):
        for name, one in found.commands.items():
            yield from commands(one, f"{path} {name}")


@pytest.mark.parametrize(("path", "command"), list(commands(typer.main.get_command(app))))
def test_no_word_of_a_help_text_is_lost(path: str, command: click.Command) -> None:
    texts = [command.help or "", *(getattr(one, "help", None) or "" for one in command.params)]
    for text in texts:
        assert Text.from_markup(text).plain == text.replace("\\[", "["), path
