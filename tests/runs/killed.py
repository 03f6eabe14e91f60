"""Runs in processes of their own, of which one is killed on the way."""

import os
import signal
import subprocess
import sys
import textwrap
import time


def killed_and_whole(script, folder):
    """What a script prints after it was killed and started again, and without that; batches on disk by then.

    The script is given a folder, in which it writes its checkpoint ``run``, and seconds to sleep in each batch.
    """

    def start(own, seconds):
        command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script), str(own), seconds]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def batches(own):
        return len(list(own.glob("run/*.npz")))

    folders = [folder / name for name in ("killed", "whole")]
    for own in folders:
        own.mkdir()
    process = start(folders[0], "0.4")
    until = time.monotonic() + 120.0
    while batches(folders[0]) < 3 and time.monotonic() < until:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    done = batches(folders[0])
    printed = [start(own, "0").communicate()[0] for own in folders]
    return printed, done, batches(folders[1])
