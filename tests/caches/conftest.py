import sys
from pathlib import Path

# Tests are imported by path; this lets them import their helpers by name.
sys.path.insert(0, str(Path(__file__).parent))
