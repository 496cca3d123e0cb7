#!/usr/bin/env python3
"""A container engine that records how it is called, and does what its first file says."""

import json
import os
import sys
import time

home = os.environ["HOME"]
with open(f"{home}/calls", "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\n")
with open(f"{home}/mode") as file:
    mode = file.read()
if mode == "down":
    print("Cannot connect to the Docker daemon.", file=sys.stderr)
    sys.exit(125)
if mode == "slow" and sys.argv[1] == "run":
    time.sleep(60)
print("ran")
