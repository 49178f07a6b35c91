"""Reports: result rows go in, something to read comes out. Simulates nothing, prices nothing, decides nothing."""

from .errors import BadResult
from .write import check_folder, earlier_report, write_report

__all__ = ["BadResult", "check_folder", "earlier_report", "write_report"]
