"""Smart search: which few candidates of a long list to compile and time.

A list is searched in waves. Before the first, candidates that cannot run are left out
by what they need of the device's shared memory and registers, without a compilation. A
model of cost, learned from every time that is known, then names the candidates of each
wave: those it expects to be the fastest, a few at random, and at first one of each
template. What a wave has timed is learned before the next. The fastest of a wave race
again in the next one, so that the last race decides between times of one session.
"""
