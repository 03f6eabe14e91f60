import numpy as np
from amc_pymc.abc_tree.local import Kernels, tempered, fit_local, normal
from amc_pymc.abc_tree.proposal import Proposal
from amc_pymc.logweights import relative
_EXP = (0.5, 0.65, 0.8, 1.0)

def judged(grown, u, near, hit, log_ratio, learner, rng, tolerance, distance):
    o = {"folds": 2, "ks": (1, 3, 6), "gammas": (0.5, 0.75), "dof": 8.0, "shares": (0.0, 0.25, 0.5, 0.75, 0.9), "se": 1.0, "per": 3.0, "soft": True, "most": 2000, "softjudge": False, "ucb": None, "lowgain": None, "pseudo": 0.0, "q": None, "wide": None, "flat": False, **learner.local}
    n, d = u.shape
    worth = relative(log_ratio) * near
    # points to fit kernels to
    pts = np.flatnonzero(near > 0.02) if o["soft"] else hit
    if len(pts) > o["most"]:
        pts = pts[np.argsort(-near[pts], kind="stable")[:o["most"]]]
    w = worth[pts]
    x = normal(u[pts])
    if o["flat"]:
        bb = np.mean([m.density(u[pts]) for m in (g.boxes("ess", 0.5) for g in grown)], axis=0)
        w = w / (0.05 + 0.95 * bb)
    fold = rng.permutation(np.arange(len(pts)) % o["folds"])
    place = np.full(n, -1); place[pts] = fold
    if o["softjudge"]:
        hit = pts
    uh = u[hit]; xf = place[hit]
    # box densities out of bag
    unseen = np.stack([g.unseen[hit] for g in grown])
    judges = unseen.any(axis=0) & (xf >= 0)
    rel = worth[hit] if o["softjudge"] else relative(log_ratio[hit])
    box = []
    for e in _EXP:
        members = tuple(g.boxes("ess", e) for g in grown)
        b = np.zeros(len(uh))
        for m, new in zip(members, unseen, strict=True):
            b[new] += m.density(uh[new])
        b[judges] /= unseen[:, judges].sum(axis=0)
        box.append((members, b))
    s = learner.share
    def gains(density):
        ww = rel[judges]
        return ww, ww / density[judges]
    best = None
    # boxes alone
    cands = []
    def low(b):
        bb = b[judges]; r = rel[judges]
        if not len(bb): return 1.0
        if o["q"] is None:
            return float(r.sum() / (r / (s + (1 - s) * bb)).sum())
        order = np.argsort(bb); c = np.cumsum(r[order])
        return float(bb[order][np.searchsorted(c, o["q"] * c[-1])])
    lows = [low(b) for _, b in box]
    for (members, b), lo in zip(box, lows):
        cands.append((s + (1 - s) * b, members, (), 0.0, s + (1 - s) * lo))
    for k in o["ks"]:
        ok = True
        fits = []
        for f in range(o["folds"]):
            keep = fold != f if o["folds"] > 1 else fold == f
            neff = w[keep].sum() ** 2 / (w[keep] ** 2).sum() if keep.any() else 0
            if neff < o["per"] * k * (d + 1) * 0.5 + 2:
                ok = False; break
            fits.append(fit_local(x[keep], w[keep], rng, k))
        if not ok: break
        for gamma in o["gammas"]:
            loc = tuple(Kernels(tempered(m, gamma, o["dof"], wide=o["wide"])) for m in fits)
            l = np.zeros(len(uh))
            for f, m in enumerate(loc):
                mine = xf == f
                if mine.any(): l[mine] = m.density(uh[mine])
            for members, b in box:
                for share in o["shares"]:
                    if share > 0:
                        cands.append((s + (1 - s) * ((1 - share) * b + share * l), members, loc, share, s + (1 - s) * (1 - share) * lo))
    if not judges.any():
        _, members, _, _, _ = cands[0]
        return Proposal(members, s, 1.0)
    if judges.sum() < 10:
        cands = cands[:1]
    ww = rel[judges]
    inv = np.stack([ww / c[0][judges] for c in cands])
    one = (ww**2).sum() / ww.sum()
    if o["pseudo"]:
        inv = np.column_stack([inv, [o["pseudo"] * one / c[4] for c in cands]])
        ww = np.r_[ww, o["pseudo"] * one]
    total = inv.sum(axis=1)
    ibox = int(np.argmin(total[:len(_EXP)]))
    i = int(np.argmin(total))
    if i != ibox:
        # better than boxes alone beyond chance, by paired differences
        diff = inv[ibox] - inv
        mean = diff.sum(axis=1); se = np.sqrt((diff**2).sum(axis=1))
        lcb = mean - o["se"] * se
        i = int(np.argmax(lcb))
        if lcb[i] <= 0: i = ibox
    spread = np.sqrt((inv**2).sum(axis=1))
    if o["ucb"] is not None:
        i = int(np.argmin(total + o["ucb"] * spread))
    _, members, loc, share, _ = cands[i]
    if o["lowgain"] is not None:
        total = total + o["lowgain"] * spread
    return Proposal(members, s, max(1.0, float(ww.sum() / total[i])), loc, share)
