// Page views, clicks on [data-onceflow], and custom events: onceflow("signup", {plan: "free"}).
// An event stays in localStorage until the server has acknowledged it, and keeps its event_id when it is sent again.
(() => {
  const script = document.currentScript, browser = navigator, window_ = window;
  if (browser.doNotTrack == 1 || browser.globalPrivacyControl) return window_.onceflow = () => {};
  const key = script.dataset.key, url = new URL("events" + (key ? "?key=" + encodeURIComponent(key) : ""), script.src);
  const id = () => [...crypto.getRandomValues(new Uint32Array(4))].map((n) => (n + 2 ** 32).toString(16).slice(1)).join("");
  const name = "onceflow", uidName = name + ".uid";
  const system = (/Android|iP|Windows|Mac|Linux/.exec(browser.userAgent) || ["unknown"])[0];
  // Without cookies, localStorage is not accessible; the events then live as long as the page.
  let store = {}, queue = [], busy, pause = 500;
  try {
    store = localStorage;
    queue = JSON.parse(store[name] || "[]");
  } catch {}
  const uid = store[uidName] || id();
  const save = () => {
    try {
      store[uidName] = uid;
      store[name] = JSON.stringify(queue = queue.slice(-50));
    } catch {}
  };
  const post = (body) => fetch(url, {method: "POST", body, keepalive: body.length < 6e4});
  const send = async () => {
    if (busy || !queue.length) return;
    busy = queue.slice();
    try {
      const {status} = await post(JSON.stringify(busy));
      // These are worth another attempt; other errors would come again.
      if (status == 408 || status == 429 || status > 499) throw 0;
      queue = queue.filter((event) => !busy.includes(event));
      pause = 500;
      save();
    } catch {
      pause = Math.min(pause * 2, 6e4);
    }
    busy = 0;
    setTimeout(send, pause == 500 ? 0 : pause);
  };
  window_.onceflow = (event, fields) => {
    queue.push({
      click_count: 0, ...fields, event, uid, event_id: id(), event_time: Date.now(),
      os_type: {iP: "iOS", Mac: "macOS"}[system] || system,
      url: location.href.split(/[?#]/)[0], referrer: document.referrer,
    });
    save();
    send();
  };
  addEventListener("click", ({target}) => {
    const element = target.closest?.("[data-onceflow]");
    if (element) onceflow("click", {click_count: 1, name: element.dataset.onceflow});
  }, true);
  // A request in progress survives the page. What waits is sent now, and again by the next page.
  addEventListener("pagehide", () => {
    const rest = JSON.stringify(queue.filter((event) => !busy || !busy.includes(event)));
    if (rest != "[]") browser.sendBeacon?.(url, rest) || post(rest);
  });
  onceflow("view");
})();
