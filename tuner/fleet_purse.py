"""What a fleet may spend: one budget, of which each model has a part."""

from flytune.tuner.account import Account, closed_row
from flytune.tuner.budget import Allowance, Meter
from flytune.tuner.build import Prepared, open_account
from flytune.tuner.estimate import together
from flytune.tuner.progress import Progress
from flytune.tuner.spent_words import estimate_line, short_line, took_text


class FleetPurse:
    """Divides a budget by what the models' tuning is expected to take.

    What one leaves is there for those after it; what all of their bakes take, by all
    that is known of each, is kept for them from the start.
    """

    def __init__(self, meter: Meter) -> None:
        """Begin with nothing to build.

        Args:
            meter: Counts from the start of the command.
        """
        self._meter = meter
        self._accounts: list[Account] = []
        self._waiting: list[Account] = []
        """Those that are not tuned yet."""
        self._met: dict[str, set[object]] = {}
        """What models are tuned for that share their lists, by what those have in
        common."""

    def open(self, prepared: Prepared, planned_s: float, key: str) -> Account:
        """Return the account of one model, the models in their order.

        Args:
            planned_s: What its plan has taken.
            key: The `sharing_key` of its build.

        Raises:
            FlytuneError: as `open_account`.
        """
        met = self._met.setdefault(key, set())
        account = open_account(prepared, self._meter, planned_s, met)
        self._accounts.append(account)
        self._waiting.append(account)
        return account

    def say(self, progress: Progress) -> None:
        """Say what all models are expected to take, and whether the budget is short."""
        if not self._waiting:
            return
        whole = together(account.first for account in self._waiting)
        progress.say(estimate_line(whole))
        if line := short_line(whole, self._whole(whole.after_tuning_s)):
            progress.say(line)

    def close(self, progress: Progress) -> None:
        """Say what all of it took, and what it was expected to."""
        if self._accounts:
            whole = together(account.expected for account in self._accounts)
            row = closed_row(whole, whole, self._meter.seconds, self._meter.gpu_seconds)
            progress.say(f"took {took_text(row)}")

    def begin(self, account: Account | None) -> None:
        """Give a model its part of what is left, before it is tuned."""
        if account is None or account not in self._waiting:
            return
        whole = self._whole(sum(one.refined.after_tuning_s for one in self._accounts))
        expected = [one.first.parts.get("tune", 0.0) for one in self._waiting]
        own = account.first.parts.get("tune", 0.0)
        account.allowance = whole.part(own / sum(expected) if own else 1.0)
        account.expected = account.first.tuning(account.allowance.tuning_s())
        self._waiting.remove(account)

    def _whole(self, kept_s: float) -> Allowance:
        """Return what all models may still take, but for what is kept for bakes."""
        one = self._accounts[0].allowance
        return Allowance(one.budget, one.price, self._meter, kept_s)
