// Knows what a document still has to do: short timers, frames that were asked for, animations that end, mutations.
// A document is quiet when none of it is left, so that nothing has to be waited for "to be sure". Chains of timers
// that go on without end, and intervals, count only as long as they change the document; a chain of frames does until
// two of its frames changed nothing, however late they come.
(() => {
  if (window.__quiet) return;
  const now = performance.now.bind(performance);
  const later = window.setTimeout.bind(window), forget = window.clearTimeout.bind(window);
  const frame = window.requestAnimationFrame.bind(window), unframe = window.cancelAnimationFrame.bind(window);
  const every = window.setInterval.bind(window), stop = window.clearInterval.bind(window);
  // bound before the page's own code can put something else in their place
  const elementAt = document.elementFromPoint.bind(document), select = document.querySelector.bind(document);
  // how many frames are in it: a page may have variables `frames` and `length` of its own
  const frameCount = Object.getOwnPropertyDescriptor(window, 'length').get.bind(window);
  const animations = document.getAnimations && document.getAnimations.bind(document);
  const timers = new Set(), frames = new Set(), intervals = new Set();
  const SOON = 1000, DEEPEST = 8, OFTEN = 250;
  const chained = new Set();
  let depth = 0, changed = -1e9, changes = 0, deep = -1e9, framed = false, shown = false;
  let known = 0, idle = 0, last = -1;
  const chain = (time) => {
    if (time === last) return;
    idle = changes === known ? idle + 1 : 0;
    known = changes;
    last = time;
  };
  const deeper = (level, work) => {
    const before = depth;
    depth = level + 1;
    try { work(); } finally { depth = before; }
  };
  window.setTimeout = function setTimeout(work, delay, ...rest) {
    const level = depth, wait = Number(delay) || 0;
    if (typeof work !== 'function' || wait > SOON) return later(work, delay, ...rest);
    const counted = level < DEEPEST;
    if (!counted) deep = now();
    const id = later(() => { timers.delete(id); deeper(level, () => work.apply(window, rest)); }, delay);
    if (counted) timers.add(id);
    return id;
  };
  window.clearTimeout = function clearTimeout(id) { timers.delete(id); intervals.delete(id); forget(id); };
  window.requestAnimationFrame = function requestAnimationFrame(work) {
    const level = depth, counted = level < DEEPEST;
    if (!counted) deep = now();
    const mine = counted ? frames : chained;
    const id = frame((time) => {
      mine.delete(id);
      if (counted) idle = 0; else chain(time);
      deeper(level, () => work(time));
    });
    mine.add(id);
    return id;
  };
  window.cancelAnimationFrame = function cancelAnimationFrame(id) {
    frames.delete(id);
    chained.delete(id);
    unframe(id);
  };
  window.setInterval = function setInterval(work, delay, ...rest) {
    const id = every(work, delay, ...rest);
    if ((Number(delay) || 0) <= OFTEN) intervals.add(id);
    return id;
  };
  window.clearInterval = function clearInterval(id) { intervals.delete(id); timers.delete(id); stop(id); };
  const watch = () => new MutationObserver(() => { changed = now(); changes += 1; }).observe(document, {
    subtree: true, childList: true, attributes: true, characterData: true,
  });
  watch();
  const animated = () => animations && animations().some((one) => {
    if (one.playState !== 'running' || !one.effect) return false;
    const left = one.effect.getComputedTiming().endTime - Number(one.currentTime || 0);
    return Number.isFinite(left) && left < 3000;
  });
  const state = () => ({
    busy: timers.size > 0 || frames.size > 0 || document.readyState !== 'complete' || animated()
      || (chained.size > 0 && idle < 2),
    ticking: intervals.size > 0 || now() - deep < OFTEN, changed: now() - changed,
  });
  // What only the next frame brings: observers of sizes and sights, scrolling that is listened to, a focus that was
  // asked for; and where a wheel or a key has scrolled to, which is asked for as `drawn` (of a wheel, the place
  // before). Else no frame is waited for:
  // there are sixty a second.
  for (const name of ['ResizeObserver', 'IntersectionObserver']) {
    const Real = window[name];
    if (Real) window[name] = class extends Real { constructor(...given) { framed = true; super(...given); } };
  }
  const listen = EventTarget.prototype.addEventListener, OF_FRAMES = /^(scroll|resize|change$|fullscreen|animation|transition)/;
  EventTarget.prototype.addEventListener = function addEventListener(kind, ...rest) {
    if (OF_FRAMES.test(kind) && !(kind === 'change' && this instanceof Node)) framed = true;
    return listen.call(this, kind, ...rest);
  };
  if (Document.prototype.startViewTransition) {
    const begin = Document.prototype.startViewTransition;
    Document.prototype.startViewTransition = function startViewTransition(...given) {
      framed = true;
      return begin.apply(this, given);
    };
  }
  // A frame that turns out to change nothing lasts its full sixtieth of a second in Chromium's compositor, and the frame
  // of a picture that is asked for meanwhile comes after it; one that commits anything is over at once. So what is done
  // with hands commits: whether anyone listens to an end of touches, which there are none of, is told to the compositor.
  const ignore = listen.call.bind(EventTarget.prototype.removeEventListener), untouched = () => {};
  let heard = false;
  const commit = () => {
    heard = !heard;
    if (heard) listen.call(window, 'touchcancel', untouched, { passive: true });
    else ignore(window, 'touchcancel', untouched, { passive: true });
  };
  for (const kind of ['pointermove', 'pointerdown', 'pointerup', 'keydown', 'keyup']) {
    listen.call(window, kind, commit, { capture: true, passive: true });
  }
  // What moves under a mouse that rests is told to the page with the next frame: it is over something else then.
  let over = null;
  listen.call(window, 'mouseover', (event) => { over = event.target; }, { capture: true, passive: true });
  const needed = () => framed || !shown || frames.size > 0 || frameCount() > 0 || window.onscroll
    || window.onresize || document.onscroll
    || select('[autofocus],[loading=lazy],[onscroll],[onscrollend],[onresize]');
  const hop = (mouse, drawn) => new Promise((done) => {
    const under = mouse && elementAt(mouse[0], mouse[1]), before = over;
    if (!drawn && !needed() && (!under || under === over)) {
      later(() => later(done, 0), 0);
      return;
    }
    const backup = later(done, 60);
    frame(() => {
      shown = true;
      commit();
      if (under && over === before) over = under;
      forget(backup);
      later(done, 0);
    });
  });
  // Where all that a wheel can move there has been scrolled to. Chromium says that it took a wheel before anything
  // scrolls, mostly by one frame: so it is asked for before and after.
  const FRAMES_OF_A_WHEEL = 4;
  const place = (x, y) => {
    const found = [window.scrollX, window.scrollY];
    for (let one = elementAt(x, y); one; one = one.parentElement) found.push(one.scrollLeft, one.scrollTop);
    return found.join();
  };
  const inner = () => {
    const found = [];
    for (let at = 0; at < frameCount() && at < 20; at += 1) {
      try { if (window[at].__quiet) found.push(window[at].__quiet.state()); } catch { /* another origin */ }
    }
    return found;
  };
  const wait = async (quiet, most, mouse, drawn) => {
    const began = now();
    for (let left = FRAMES_OF_A_WHEEL; typeof drawn === 'string' && left > 1 && place(...mouse) === drawn; left -= 1) {
      await hop(mouse, true);
    }
    for (;;) {
      await hop(mouse, drawn);
      const all = [state(), ...inner()];
      if (all.every((one) => !one.busy && (!one.ticking || one.changed >= quiet))) return true;
      if (now() - began > most) return false;
      await new Promise((done) => later(done, 4));
    }
  };
  Object.defineProperty(window, '__quiet', { value: Object.freeze({ state, wait, place, frameCount }) });
  if (navigator.serviceWorker) Object.defineProperty(Navigator.prototype, 'serviceWorker', { get: () => undefined });
})();
