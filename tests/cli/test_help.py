"""Help texts are read as markup: what stands in square brackets must reach the reader all the same."""

from collections.abc import Iterator

import click
import pytest
import typer
from rich.text import Text

from wardround.cli.main import app


def commands(command: click.Command, path: str = "wardround") -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, subcommand in command.commands.items():
            yield from commands(subcommand, f"{path} {name}")


@pytest.mark.parametrize(("path", "command"), list(commands(typer.main.get_command(app))))
def test_no_word_of_a_help_text_is_lost(path: str, command: click.Command) -> None:
    texts = [command.help or "", *(getattr(parameter, "help", None) or "" for parameter in command.params)]
    for text in texts:
        assert Text.from_markup(text).plain == text.replace("\\[", "["), path
