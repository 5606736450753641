"""How a party answers messages about a study in which parties hold different features of the same patients."""

from typing import Any

from wardround.core.errors import DeployError
from wardround.core.tree import Tree
from wardround.deployment.vertical.party_scoring import last_embeddings, save_parts, score
from wardround.deployment.vertical.party_session import PartySession
from wardround.deployment.vertical.party_training import Wave, place_in
from wardround.protocol.messages import Message

STEPS = ("embed", "learn", "embed_last")  # whose answers are kept until the next one
KINDS = ("match", "assign", "shape", "agree", *STEPS, "assess")
AT_HOLDER = ("assign", "learn", "assess")
AT_OTHERS = ("embed", "embed_last")
Answer = tuple[dict[str, Any], Tree, str]  # body, tensors, a line for this party's own screen


class PartyWork:
    def __init__(self, session: PartySession) -> None:
        self.session = session
        self.wave: Wave | None = None  # as it stands after the last step; None: it is in files

    def answer(self, message: Message) -> Answer:
        kind, body, session = message.kind, message.body, self.session
        if kind in (AT_OTHERS if session.is_holder else AT_HOLDER):
            raise DeployError("coordinator", "asks a party for another one's work", "Start the coordinator again.")
        if kind == "match":
            return (*session.match(body, message.tensors), "")
        if kind == "assign":
            return (*session.assign(body), "")
        if kind == "shape":
            return session.shape(message.tensors), {}, ""
        if kind == "agree":
            return session.agree(body), {}, "patients are matched; training begins"
        number, step = place_in(body)
        known, self.wave = self.wave, None  # what fails in the middle of a step begins again from its file
        wave = Wave.after(session, number, step - 1, known)
        answer = self._step(kind, wave, step, message.tensors)
        self.wave = wave
        return answer

    def _step(self, kind: str, wave: Wave, step: int, tensors: Tree) -> Answer:
        if kind == "embed":
            return {}, wave.embed(step, tensors), _round_line(wave, step)
        if kind == "learn":
            losses, leaving = wave.learn(step, tensors)
            return {"losses": losses}, leaving, _round_line(wave, step)
        if kind == "embed_last":
            wave.finish(step, tensors)
            save_parts(wave)
            return {}, last_embeddings(wave), f"wave {wave.number + 1}: trained"
        save_parts(wave)
        return score(wave, tensors), {}, f"wave {wave.number + 1}: predictions are made, and stay here"


def _round_line(wave: Wave, step: int) -> str:
    """A line for the last block of a round of the wave's first trial."""
    first = next(iter(wave.trials.values()))
    done, rest = divmod(step + 1, first.each)
    return f"wave {wave.number + 1}, round {done}: trained" if not rest and step < first.steps else ""
