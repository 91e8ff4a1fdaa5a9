"""What a trained or compiled model does: eigenvalues, theorems, and how far it carries.

audit(model, ...)                 A(x) of a model on one word, and what the theorems ask of it
audit_run(run), read_audit(run)   the same of a trained run, and audit.json in its folder
horizon(model, task, lengths)     accuracy at lengths far beyond training
lifetime(modulus)                 tokens until an eigenvalue has faded
extract(model, task)              the finite machine that a model has learnt
difference(machine, other)        a shortest word on which two machines differ
polish(model, machine)            a trained one-layer model, repaired to follow a machine exactly
certify(model, machine)           the length up to which every word is answered rightly
"""

from statetrack.analysis.audit import Audit as Audit
from statetrack.analysis.audit import Finding as Finding
from statetrack.analysis.audit import LayerAudit as LayerAudit
from statetrack.analysis.audit import audit as audit
from statetrack.analysis.audit_file import RunAudit as RunAudit
from statetrack.analysis.audit_file import read_audit as read_audit
from statetrack.analysis.black_box import BlackBox as BlackBox
from statetrack.analysis.black_box import black_box as black_box
from statetrack.analysis.certify import Certificate as Certificate
from statetrack.analysis.certify import certify as certify
from statetrack.analysis.extract import Attempt as Attempt
from statetrack.analysis.extract import Difference as Difference
from statetrack.analysis.extract import Disagreement as Disagreement
from statetrack.analysis.extract import Extraction as Extraction
from statetrack.analysis.extract import difference as difference
from statetrack.analysis.extract import extract as extract
from statetrack.analysis.extract import extractions as extractions
from statetrack.analysis.horizons import exact_to as exact_to
from statetrack.analysis.horizons import horizon as horizon
from statetrack.analysis.polish import Polish as Polish
from statetrack.analysis.polish import polish as polish
from statetrack.analysis.run_audit import audit_run as audit_run
from statetrack.analysis.run_audit import to_audit as to_audit
from statetrack.analysis.spectra import lifetime as lifetime
