"""What is stored: targets, records, Inductor's files and bundles."""

from flytune.caches.bundle import Bundle
from flytune.caches.install import Installed, install
from flytune.caches.packing import pack

__all__ = ["Bundle", "Installed", "install", "pack"]
