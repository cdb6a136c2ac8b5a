"""What is stored: targets, records, Inductor's files and bundles."""

from flytune.caches.bundle import Bundle
from flytune.caches.found import find_bundles
from flytune.caches.install import install
from flytune.caches.packing import pack
from flytune.caches.prepare import Installed
from flytune.caches.trust import UntrustedError

__all__ = ["Bundle", "Installed", "UntrustedError", "find_bundles", "install", "pack"]
