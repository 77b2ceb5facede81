"""Export: a castled network as a file for an engine, proved equal to PyTorch before it is called done."""

from castling.exporting.engines import ENGINES, EngineName, on_engine
from castling.exporting.exported import ExportFailed
from castling.exporting.formats import FORMATS, FormatName, open_export, read_metadata
from castling.exporting.int8 import QuantizationCard, quantize
from castling.exporting.metadata import Metadata, describe_deployment, describe_network
from castling.exporting.verify import Verification, verify
from castling.exporting.write import check_castled, export

__all__ = [
    "ENGINES",
    "FORMATS",
    "EngineName",
    "ExportFailed",
    "FormatName",
    "Metadata",
    "QuantizationCard",
    "Verification",
    "check_castled",
    "describe_deployment",
    "describe_network",
    "export",
    "on_engine",
    "open_export",
    "quantize",
    "read_metadata",
    "verify",
]
