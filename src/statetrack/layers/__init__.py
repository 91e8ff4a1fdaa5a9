"""Layers: projections, an eigenvalue range and one op each.

Every layer has forward(x, state) -> (y, state), step(x_t, state), transitions(x) and state_size.
The linear ones take `eigen_range`; SLSTM, LSTM, Attention and ChannelMix have no transition matrix
and refuse it. `register` adds a layer of your own.
"""

from statetrack.layers._base import Fold as Fold
from statetrack.layers._base import Layer as Layer
from statetrack.layers._base import LayerState as LayerState
from statetrack.layers._base import Shared as Shared
from statetrack.layers.attention import Attention as Attention
from statetrack.layers.channel_mix import ChannelMix as ChannelMix
from statetrack.layers.delta_net import DeltaNet as DeltaNet
from statetrack.layers.delta_product import DeltaProduct as DeltaProduct
from statetrack.layers.diagonal import Diagonal as Diagonal
from statetrack.layers.full_matrix import FullMatrix as FullMatrix
from statetrack.layers.gated_delta_net import GatedDeltaNet as GatedDeltaNet
from statetrack.layers.gla import GLA as GLA
from statetrack.layers.kda import KDA as KDA
from statetrack.layers.lru import LRU as LRU
from statetrack.layers.lstm import LSTM as LSTM
from statetrack.layers.mamba import Mamba as Mamba
from statetrack.layers.mamba2 import Mamba2 as Mamba2
from statetrack.layers.mlstm import MLSTM as MLSTM
from statetrack.layers.registry import get as get
from statetrack.layers.registry import register as register
from statetrack.layers.rwkv7 import RWKV7 as RWKV7
from statetrack.layers.slstm import SLSTM as SLSTM
from statetrack.layers.tracker import Tracker as Tracker
from statetrack.layers.transitions import Transitions as Transitions
from statetrack.layers.ttt_linear import TTTLinear as TTTLinear
