"""The site's Flower app: every Flower message carries one sealed message, and `answer` does all that a site does."""

from collections.abc import Callable

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from wardround.core.errors import DeployError
from wardround.deployment.flower.wire import from_record, to_record
from wardround.protocol.messages import Sealed

NO_MESSAGE = Sealed(b"", b"", b"")  # carries no signature, so that it is refused and logged like a forged one


def client_app(answer: Callable[[Sealed], Sealed]) -> ClientApp:
    app = ClientApp()

    def reply(message: Message, context: Context) -> Message:
        try:
            sealed = from_record(message.content)
        except (DeployError, ValueError):  # ValueError: it holds an error and no content
            sealed = NO_MESSAGE
        return Message(to_record(answer(sealed)), reply_to=message)

    for kind in (app.train, app.evaluate, app.query):
        kind()(reply)
    return app
