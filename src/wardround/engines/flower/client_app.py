"""The site's app: every message is a letter, and `answer` is all that a site does."""

from collections.abc import Callable

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from wardround.engines.flower.wire import from_record, to_record
from wardround.engines.letters import Sealed


def client_app(answer: Callable[[Sealed], Sealed]) -> ClientApp:
    app = ClientApp()

    def reply(message: Message, context: Context) -> Message:
        return Message(to_record(answer(from_record(message.content))), reply_to=message)

    for kind in (app.train, app.evaluate, app.query):
        kind()(reply)
    return app
