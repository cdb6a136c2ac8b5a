"""Whether a new bundle serves worse than a baseline: the gate of a pull request.

Manifests and records alone are read, and the timings file, which is JSON: nothing of a
bundle is unpickled or run, so that neither bundle needs to be trusted.

What is tested. The shift of a list is the logarithm of the new winner's median over the
old winner's. A shift is an alarm where three things hold at once: the ratio is above
`max_regression`, the difference is above `floor_us`, and the shift is significant. The
same holds for the time that a forward pass spends in its lists, each by its calls.

Against what. Two tunes are two processes, and differ by more than the rounds within
one: by memory that lies elsewhere, by clocks, by what else ran. How much more is taken
from the data: from kernels that are the very same in both bundles (`kernels.is_same`),
whose shifts are due to nothing else. An analysis of variance (`yardstick`) tells apart
how far a list's kernels shift together, and each by itself. What a list's siblings, the
kernels that did not win, share with the winner is taken off its shift before the test,
in the share that the two variances make the best prediction.

What is left is divided by its standard deviation, to which the error of the list's own
rounds is added, and compared with Student's distribution, of Satterthwaite's degrees of
freedom. The variances are of the other lists alone, so that a list which did get slower
does not excuse itself; values far from the middle are drawn in, so that a few which did
do not excuse the rest; and where kernels are few or agree too well, a prior adds to
them. By as much as the canary got slower, a shift is held to be the device's.

Why false alarms are as rare as that. Under the null hypothesis, one thing tuned twice,
each winner is the fastest of its race, and swapping the bundles turns the sign: the
shift has no bias, and the spread of the kernels that it is measured by. All lists and
all sums over a forward pass are corrected together by Holm's procedure, which needs no
independence: that any of them alarms has at most the probability `FALSE_ALARMS`. It is
half of what is promised, for a spread that is estimated is off by some of itself; the
other two conditions only lower it.

What the records leave open may be timed again (`again`), where both winners race in
several processes of one device (`raced`): no tune lies between them, and only those
lists are tested whose winners are two kernels.

What is found. Of 20 lists with 5 kernels each one that is 5 % slower is found in 97 of
100 comparisons where a kernel differs by 1 % from tune to tune, 0.8 % of it together
with its list, and in all where it differs by half of that; in 73 where each kernel
differs by itself. `test_regression_rates` counts both errors over seeded simulations.
"""
