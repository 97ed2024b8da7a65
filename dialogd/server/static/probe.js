// Finds out which of these daemons answer. A worker, because it comes with a policy of its own: the page's was fixed when
// the page was opened, perhaps before anybody knew who takes part. See page_policy in page.py.
addEventListener("message", async ({ data: urls }) => {
  const asked = urls.map(async (url) => {
    await fetch(`${url}/health`, { mode: "no-cors", cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(1500) });
    return url;
  });
  // The browser shows nothing of the answer, only that there is one.
  postMessage(await Promise.any(asked).catch(() => ""));
});
