"""A small server for tests: answers 200 on its port after printing a ready line; misbehaves on request."""
# ruff: noqa: T201, PTH104, PTH123

import argparse
import http.server
import os
import signal
import sys
import threading
import time

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--ready-after", type=float, default=0.0)
parser.add_argument("--ignore-term", action="store_true")
parser.add_argument("--close-stdout", action="store_true")
parser.add_argument("--flood", type=int, default=0, help="bytes of log before ready")
parser.add_argument("--no-newline", action="store_true")
parser.add_argument("--exit", type=int)
parser.add_argument("--fork-away", action="store_true", help="the main process ends, a child in a new session lives on")
parser.add_argument("--escape", choices=["session", "reparent", "rename", "bare"])
parser.add_argument("--pid-file")
parser.add_argument("--say", default="")
options = parser.parse_args()

if options.ignore_term:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if options.say:
    print(options.say, flush=True)


def note(pid):
    if options.pid_file:
        with open(options.pid_file + ".new", "w") as handle:
            handle.write(str(pid))
        os.rename(options.pid_file + ".new", options.pid_file)


def escaped():
    """Run in a child: get away from the server in the way that was asked for, and stay."""
    os.setsid()
    if options.escape in ("reparent", "bare") and os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note(os.getpid())
    if options.escape == "bare":  # no marker, no parent, no session, no name of ours
        os.execve("/bin/sleep", ["kworker/7:1", "600"], {})
    if options.escape == "rename":
        os.execv("/bin/sleep", ["sshd: root@notty", "600"])
    time.sleep(600)


if options.escape:
    child = os.fork()
    if child == 0:
        escaped()
    if options.escape in ("reparent", "bare"):
        os.waitpid(child, 0)
if options.fork_away and os.fork() == 0:
    os.setsid()
    note(os.getpid())
    time.sleep(600)
if options.fork_away:
    time.sleep(0.3)
    sys.exit(0)
if options.exit is not None:
    print("going down", flush=True)
    sys.exit(options.exit)
if options.close_stdout:
    os.close(1)
    os.close(2)
if options.flood:
    line = b"x" * 99 + (b"x" if options.no_newline else b"\n")
    block = line * 1000
    for _ in range(options.flood // len(block)):
        os.write(1, block)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"ok " + str(os.getpid()).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


time.sleep(options.ready_after)
server = http.server.ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
if not options.close_stdout:
    os.write(1, b"ready at %.6f\n" % time.time())
while True:
    time.sleep(60)
