"""What a comparison found, for people: tables, figures and one page.

tables         the tables, made from results alone
layout         what they have in common
group_tables   those of major and minor users
list_tables    those of what a user would be shown
order_tables   those of what lists are ordered by
paired_tables  those of paired tests
paper_tables   those of the paper, beside ours
render         a table as text, Markdown, LaTeX
figures        the figures, SVG and PDF
page           all of it as one HTML page
glossary       what the page's words mean
refresh        a comparison's finished cells -> results and report, again
"""

from pathlib import Path

from paml.analysis.results import read_results
from paml.files import write_text


def write_report(folder: Path) -> Path:
    """Make tables/, figures/ and report.html from a comparison's results and frames; returns the page's path."""
    from paml.report.figures import figures, save_figures  # slow to import, and only reports need it
    from paml.report.page import page
    from paml.report.render import SUFFIXES, render
    from paml.report.tables import all_tables

    results = read_results(folder)
    tables, drawn = all_tables(results), figures(folder, results)
    (folder / "tables").mkdir(exist_ok=True)
    texts = {f"{table.name}.{SUFFIXES[form]}": render(table, form) for table in tables for form in SUFFIXES}
    for name, text in texts.items():
        write_text(folder / "tables" / name, text)
    for old in (folder / "tables").iterdir():
        if old.name not in texts and not old.name.startswith("."):
            old.unlink(missing_ok=True)  # of an earlier report that had more to show
    save_figures(drawn, folder / "figures")
    out = folder / "report.html"
    write_text(out, page(results, tables, drawn, str(folder)))
    return out
