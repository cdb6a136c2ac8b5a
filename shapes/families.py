"""The table of the model families whose GEMMs are known, one row each.

A family is added by a row and is never guessed: an architecture without a row is an
error.
"""

from flytune.shapes.dense import DENSE
from flytune.shapes.hybrid import HYBRIDS
from flytune.shapes.latent import LATENT
from flytune.shapes.moe import MIXTURES
from flytune.shapes.nemotron_nas import NEMOTRON_NAS

FAMILIES = (*DENSE, *NEMOTRON_NAS, *MIXTURES, *HYBRIDS, *LATENT)
BY_ARCHITECTURE = {family.architecture: family for family in FAMILIES}
