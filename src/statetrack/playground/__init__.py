"""The playground: a page in which machines and the exact networks made of them run.

The page needs nothing beside itself. `write_page` writes it with the machines of the gallery;
`Playground` serves it on this machine and compiles what is typed there. No torch is needed.
"""

from statetrack.playground.gallery import GALLERY as GALLERY
from statetrack.playground.gallery import Specimen as Specimen
from statetrack.playground.page import entry as entry
from statetrack.playground.page import render as render
from statetrack.playground.page import write_page as write_page
from statetrack.playground.server import Playground as Playground
