"""What a trained or compiled model does: eigenvalues, theorems, and how far it carries."""

from statetrack.analysis.audit import Audit as Audit
from statetrack.analysis.audit import audit as audit
from statetrack.analysis.audit import horizon as horizon
