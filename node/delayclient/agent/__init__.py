"""A process beside a program, which speaks to the cluster for it: for Celery and Django.

A program that forks, as Celery's worker and most web servers do, can't use gRPC in both halves, and one that is
patched by gevent can't use it at all. So the SDK runs in a process of its own, the agent, which is started at first
use, and the program talks to it through pairs of sockets. Of this package only process.py and subscription.py load
gRPC.

The agent ends with its program: it sees the sockets close, and looks for its parent's end once a second.
"""
