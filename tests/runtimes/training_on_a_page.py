"""The page of the example learns in a browser what torch learns. ``nox -s runtimes`` runs it."""

from __future__ import annotations

import functools
import html
import http.server
import json
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "scripts" / "examples" / "training_files"
STEPS = 50

DRIVER = """<!doctype html><title>driver</title><pre id="result"></pre>
<iframe id="frame" src="index.html"></iframe><script type="module">
  const frame = document.getElementById("frame").contentWindow;
  const say = (text) => { document.getElementById("result").textContent = text; };
  try {
    while (!frame.page) await new Promise((done) => setTimeout(done, 50));
    const rows = await (await fetch("rows.json")).json();
    let losses = [];
    for (const [pixels, label] of rows) losses = await frame.page.learn(pixels, label, STEPS);
    const guesses = [];
    for (const [pixels] of rows) guesses.push(await frame.page.guess(pixels));
    const lines = frame.document.querySelectorAll("#curve polyline").length;
    say(JSON.stringify({ losses: [...losses], guesses, lines }));
  } catch (error) { say(JSON.stringify({ error: String(error) })); }
</script>"""


def test_a_browser_learns_as_torch_does(tmp_path: Path) -> None:
    npm, browser = shutil.which("npm"), shutil.which("chromium") or shutil.which("google-chrome")
    assert npm is not None, "Node and npm are needed"
    assert browser is not None, "Chromium is needed"
    subprocess.run([sys.executable, EXAMPLE / "make_page.py", tmp_path], check=True)
    install = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "onnxruntime-web"]
    (tmp_path / "package.json").write_text('{"name": "page", "private": true}')
    subprocess.run(install, cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "ort").symlink_to(tmp_path / "node_modules" / "onnxruntime-web" / "dist")
    torch.manual_seed(1)
    rows = [(torch.rand(144), label) for label in (0, 1, 2, 0)]
    (tmp_path / "rows.json").write_text(json.dumps([[x.tolist(), y] for x, y in rows]))
    (tmp_path / "driver.html").write_text(DRIVER.replace("STEPS", str(STEPS)))

    class Quiet(http.server.SimpleHTTPRequestHandler):
        extensions_map: ClassVar[dict[str, str]] = {
            **http.server.SimpleHTTPRequestHandler.extensions_map,
            ".mjs": "text/javascript",
        }

        def log_message(self, *_: object) -> None: ...

    handler = functools.partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
        command += ["--virtual-time-budget=60000", f"--user-data-dir={tmp_path / 'profile'}"]
        page = f"http://127.0.0.1:{server.server_address[1]}/driver.html"
        done = subprocess.run([*command, page], capture_output=True, text=True, timeout=300)
        server.shutdown()
    shown = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, re.DOTALL)
    assert shown is not None, done.stderr[-2000:]
    found = json.loads(html.unescape(shown[1]))
    assert "error" not in found, found
    assert found["lines"] == 1
    assert found["guesses"] == [y for _, y in rows]

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(144, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    want = []
    for count in range(1, len(rows) + 1):
        x = torch.stack([x for x, _ in rows[:count]])
        y = torch.tensor([y for _, y in rows[:count]])
        for _ in range(STEPS):
            loss = F.cross_entropy(model(x), y)
            want.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    got = [float(loss) for loss in found["losses"]]
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(got[:100], want[:100], rtol=1e-4, atol=1e-6)
