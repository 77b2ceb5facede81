"""`castling play`: runs in the browser, beside each other on one picture."""

from __future__ import annotations

import argparse
import logging
import os
import time
from pathlib import Path

from rich import get_console

from castling.cli import HelpFormatter, add_speech, say
from castling.extras import import_extra
from castling.report.play_page import launch_options, make_page
from castling.workflows.playing import Player


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb and its flags."""
    parser = verbs.add_parser(
        "play",
        help="show runs in the browser: what they say, cost and attend to",
        description="Serve a page on this machine alone: drop a picture, choose its size, and see what every network "
        "of a run says, takes and holds, and where a place looks when it is clicked. Ctrl-C ends it.",
        epilog="Example: castling play demo/castling demo/softmax demo/castling/castled/model.onnx",
        formatter_class=HelpFormatter,
    )
    add = parser.add_argument
    add(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="run folders, or files that were exported from them; each gets a tab",
    )
    add("--port", type=int, metavar="N", help="port (default: the first free one from 7860 on)")
    add("--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on, where others see it too")
    add("--open", action="store_true", help="open the page in a browser")
    add_speech(parser)
    parser.set_defaults(run=run)


def run(flags: argparse.Namespace) -> None:
    """Serve the page until it is interrupted."""
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # gradio asks itself whether it is there
    import_extra("gradio", "play")
    import_extra("matplotlib", "report")
    with get_console().status("Opening runs"):
        page = make_page([Player(folder) for folder in flags.runs])
    _, address, _ = page.launch(
        server_name=flags.host,
        server_port=flags.port,
        inbrowser=flags.open,
        prevent_thread_lock=True,
        quiet=True,
        **launch_options(),
    )
    say(f"the page: {address} (Ctrl-C ends it)")
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        say("closed")
    finally:
        page.close(verbose=False)
