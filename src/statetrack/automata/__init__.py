"""Automata and what linear RNNs need to know of them: machines, groups, monoid facts, cascades.

Plain numpy; regular expressions need automata-lib, loaded when the first one is read.
"""

from statetrack.automata import groups as groups
from statetrack.automata._automata_lib import letters_of as letters_of
from statetrack.automata.cascade import Cascade as Cascade
from statetrack.automata.cascade import CascadeRun as CascadeRun
from statetrack.automata.cascade import Level as Level
from statetrack.automata.dot import machine_of_dot as machine_of_dot
from statetrack.automata.drop_point import drop_point as drop_point
from statetrack.automata.holonomy import holonomy as holonomy
from statetrack.automata.machine import Machine as Machine
from statetrack.automata.minimal_degree import Representation as Representation
from statetrack.automata.minimal_degree import minimal_degree as minimal_degree
from statetrack.automata.minimal_degree import minimal_representation as minimal_representation
from statetrack.automata.monoid import Facts as Facts
from statetrack.automata.monoid import Permutator as Permutator
from statetrack.automata.monoid import facts as facts
from statetrack.automata.monoid import monoid_size as monoid_size
from statetrack.automata.named import is_name as is_name
from statetrack.automata.named import is_word_problem as is_word_problem
from statetrack.automata.named import mod_arithmetic as mod_arithmetic
from statetrack.automata.named import named as named
from statetrack.automata.one_layer import FiniteMemory as FiniteMemory
from statetrack.automata.one_layer import Project as Project
from statetrack.automata.one_layer import RookLayer as RookLayer
from statetrack.automata.one_layer import Swap as Swap
from statetrack.automata.one_layer import factors as factors
from statetrack.automata.one_layer import finite_memory as finite_memory
from statetrack.automata.one_layer import one_layer as one_layer
from statetrack.automata.one_layer import rook_layer as rook_layer
from statetrack.automata.one_layer import rook_matrix as rook_matrix
from statetrack.automata.permutation_group import PermutationGroup as PermutationGroup
from statetrack.automata.permutation_group import num_householders as num_householders
from statetrack.automata.sources import Source as Source
from statetrack.automata.sources import looks_like_a_name as looks_like_a_name
from statetrack.automata.sources import machine_of_table as machine_of_table
from statetrack.automata.sources import read as read
from statetrack.automata.sources import save as save
from statetrack.automata.sources import source as source
from statetrack.automata.sources import table_of as table_of
from statetrack.automata.split import Split as Split
from statetrack.automata.split import prime_series as prime_series
from statetrack.automata.split import split as split
from statetrack.automata.tokens import TokenMachine as TokenMachine
from statetrack.automata.tokens import over_tokens as over_tokens
