"""Measuring a model on this machine, each figure beside the peer that it is to be judged by.

Everything is measured from outside, as a program would: the engine through its client, llama.cpp's own loop
in a process of its own (`edgechat.runtimes.llamacpp.bare`). No native code is imported here.
"""
