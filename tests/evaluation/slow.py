# SPDX-License-Identifier: Apache-2.0
"""The measures once more, box by box in plain loops, written from their rules alone."""

import math

import numpy as np

# --------------------------------------------------------------------------------------- overlaps


def corners(x, y, length, width, yaw):
    """Counter-clockwise."""
    c, s = math.cos(yaw), math.sin(yaw)
    half = [(length / 2, width / 2), (-length / 2, width / 2)]
    half += [(-a, -b) for a, b in half]
    return [(x + a * c - b * s, y + a * s + b * c) for a, b in half]


def clipped_area(polygon, window):
    """Area of a polygon within a convex one, edge by edge."""
    for k in range(len(window)):
        (px, py), (qx, qy) = window[k - 1], window[k]
        inside = [(qx - px) * (y - py) - (qy - py) * (x - px) for x, y in polygon]
        kept = []
        for i in range(len(polygon)):
            a, b = inside[i - 1], inside[i]
            if (a < 0) != (b < 0):
                (ax, ay), (bx, by) = polygon[i - 1], polygon[i]
                kept.append((ax + (bx - ax) * a / (a - b), ay + (by - ay) * a / (a - b)))
            if b >= 0:
                kept.append(polygon[i])
        polygon = kept
    return sum(a[0] * b[1] - b[0] * a[1] for a, b in zip(polygon, polygon[1:] + polygon[:1])) / 2  # noqa: B905


def rotated(a, b, volume):
    """IoU of two boxes x, y, z, l, w, h, yaw."""
    if min(*a[3:6], *b[3:6]) <= 0:
        return 0.0
    shared = clipped_area(*(corners(*o[:2], *o[3:5], o[6]) for o in (a, b)))
    sizes = a[3] * a[4] + b[3] * b[4]
    if volume:
        high = min(a[2] + a[5] / 2, b[2] + b[5] / 2)
        shared *= max(0.0, high - max(a[2] - a[5] / 2, b[2] - b[5] / 2))
        sizes = a[3] * a[4] * a[5] + b[3] * b[4] * b[5]
    return shared / (sizes - shared)


def shared_in_image(a, b):
    sides = [min(a[k + 2], b[k + 2]) - max(a[k], b[k]) for k in (0, 1)]
    return sides[0] * sides[1] if min(sides) > 0 else 0.0


def area(box):
    return (box[2] - box[0]) * (box[3] - box[1])


def kitti_overlaps(truth, found, metric):
    """[G, D] of one frame."""
    table = np.zeros((len(truth["name"]), len(found["name"])))
    for g in range(table.shape[0]):
        for d in range(table.shape[1]):
            if metric == "2d":
                shared = shared_in_image(truth["box"][g], found["box"][d])
                union = area(truth["box"][g]) + area(found["box"][d]) - shared
                table[g, d] = shared / union if shared else 0.0
            else:
                boxes = []
                for frame, i in ((truth, g), (found, d)):
                    (x, y, z), (h, w, l) = frame["location"][i], frame["size"][i]  # noqa: E741
                    boxes.append((x, z, h / 2 - y, l, w, h, -frame["ry"][i]))
                table[g, d] = rotated(*boxes, metric == "3d")
    return table


# ------------------------------------------------------------------------------------------ KITTI


def kitti(truth, found, name, difficulty, metric, least, overlaps):
    """(R11, R40, R11 and R40 of the orientation) in percent. overlaps: [G, D] of each frame."""
    height, occluded, truncated = {"easy": (40, 0, 0.15), "moderate": (25, 1, 0.3)}.get(
        difficulty, (25, 2, 0.5)
    )
    also = {"Car": "Van", "Pedestrian": "Person_sitting"}.get(name)
    frames, num_valid = [], 0
    for t, f, overlap in zip(truth, found, overlaps, strict=True):
        gts, dets, regions = {}, {}, []
        for g, kind in enumerate(t["name"]):
            high = t["box"][g][3] - t["box"][g][1] > height
            fits = high and t["occluded"][g] <= occluded and t["truncated"][g] <= truncated
            if kind in (name, also):
                gts[g] = kind == name and fits
                num_valid += gts[g]
            if kind == "DontCare":
                regions.append(t["box"][g])
        for d, kind in enumerate(f["name"]):
            if abs(f["box"][d][3] - f["box"][d][1]) < height:
                dets[d] = False
            elif kind == name:
                dets[d] = True
        frames.append((t, f, gts, dets, regions, overlap))

    scores = []
    for _, f, gts, dets, _, overlap in frames:
        taken = set()
        for g, valid in gts.items():
            best = None
            for d in dets:
                better = best is None or f["score"][d] > f["score"][best]
                if d not in taken and overlap[g, d] > least and better:
                    best = d
            if best is not None:
                taken.add(best)
                if valid and dets[best]:
                    scores.append(f["score"][best])
    scores.sort(reverse=True)
    thresholds, r = [], 0.0
    for i, score in enumerate(scores):
        if i < len(scores) - 1 and (i + 2) / num_valid - r < r - (i + 1) / num_valid:
            continue
        thresholds.append(score)
        r += 1 / 40

    curves = np.zeros((2, 41))
    for k, threshold in enumerate(thresholds):
        true, false, alike = 0, 0, 0.0
        for t, f, gts, dets, regions, overlap in frames:
            left = {d: valid for d, valid in dets.items() if f["score"][d] >= threshold}
            for g, valid in gts.items():
                choice = [d for d in left if overlap[g, d] > least]
                good = [d for d in choice if left[d]]
                if good:
                    best = max(good, key=lambda d: overlap[g, d])
                elif choice:
                    best = choice[0]
                else:
                    continue
                if valid and left[best]:
                    true += 1
                    alike += (1 + math.cos(t["alpha"][g] - f["alpha"][best])) / 2
                del left[best]
            for d, valid in left.items():
                share = [
                    shared_in_image(f["box"][d], b) / area(f["box"][d]) for b in regions if valid
                ]
                false += valid and not (metric == "2d" and max(share, default=0) > least)
        if true + false:
            curves[:, k] = true / (true + false), alike / (true + false)
    for curve in curves:
        for k in reversed(range(40)):
            curve[k] = max(curve[k], curve[k + 1])
    return [100 * m for c in curves for m in (sum(c[::4]) / 11, sum(c[1:]) / 40)]


# ---------------------------------------------------------------------------- boxes and points


def lidar(truth, found, label, metric, least, low=0.0, high=math.inf, score=-math.inf):
    """Average precision, and precision, recall and share of flips of detections from a score on."""

    def inside(box):
        return low <= math.hypot(box[0], box[1]) < high

    order = [
        (-float(f["scores"][d]), s, d)
        for s, f in enumerate(found)
        for d in range(len(f["labels"]))
        if f["labels"][d] == label
    ]
    valid = {
        (s, g): t["points"][g] >= 5 and inside(t["boxes"][g])
        for s, t in enumerate(truth)
        for g in range(len(t["labels"]))
        if t["labels"][g] == label
    }
    n, taken, outcomes, flips, above = sum(valid.values()), set(), [], [], 0
    for falling, s, d in sorted(order):
        box, best = found[s]["boxes"][d], None
        for (at, g), good in valid.items():
            if at == s and (s, g) not in taken:
                iou = rotated(truth[s]["boxes"][g], box, metric == "3d")
                if iou > least and (best is None or (good, iou) > best[:2]):
                    best = good, iou, g
        if best:
            taken.add((s, best[2]))
            if best[0]:
                turned = (box[6] - truth[s]["boxes"][best[2]][6]) % (2 * math.pi)
                flips.append(math.pi / 2 < turned < 3 * math.pi / 2)
        if best[0] if best else inside(box):
            outcomes.append(bool(best))
            above = len(outcomes) if -falling >= score else above
    points = [(sum(outcomes[: k + 1]), k + 1) for k in range(len(outcomes))]
    best = [max((h / k for h, k in points if 40 * h >= r * n), default=0) for r in range(1, 41)]
    hits = sum(outcomes[:above])
    shares = (hits, above), (hits, n), (sum(flips[:hits]), hits)
    return [sum(best) / 40 if n else math.nan, *(a / b if b else math.nan for a, b in shares)]


# --------------------------------------------------------------------------------------- nuScenes


def interpolate(x, xs, ys):
    """Linear; xs rise, of equal ones the last counts; below the first its value, above the last
    0."""
    if x > xs[-1]:
        return 0.0
    at = max((k for k in range(len(xs)) if xs[k] <= x), default=None)
    if at is None:
        return ys[0]
    if at == len(xs) - 1:
        return ys[at]
    return ys[at] + (x - xs[at]) * (ys[at + 1] - ys[at]) / (xs[at + 1] - xs[at])


def nuscenes(truth, found, ego, racks, name, reach, distance):
    """Average precision and the five errors of one class at one distance of a match."""

    def counts(boxes, s, i):
        if boxes["name"][i] != name or math.dist(boxes["xyz"][i][:2], ego[s]) >= reach:
            return False
        if "points" in boxes and boxes["points"][i] == 0:
            return False
        if name in ("bicycle", "motorcycle"):
            for r in range(len(racks[s]["yaw"])):
                dx, dy, dz = boxes["xyz"][i] - racks[s]["xyz"][r]
                c, e = math.cos(racks[s]["yaw"][r]), math.sin(racks[s]["yaw"][r])
                local = abs(dx * c + dy * e), abs(dy * c - dx * e), abs(dz)
                if all(o <= side / 2 for o, side in zip(local, racks[s]["lwh"][r], strict=True)):
                    return False
        return True

    def listed(all_boxes):
        return [
            (s, i)
            for s, b in enumerate(all_boxes)
            for i in range(len(b["name"]))
            if counts(b, s, i)
        ]

    gts, dets = listed(truth), listed(found)
    order = sorted(range(len(dets)), key=lambda k: (found[dets[k][0]]["score"][dets[k][1]], k))[
        ::-1
    ]
    taken, hits, scores, precision, recall = set(), 0, [], [], []
    matched = []  # (score, errors)
    for k in order:
        s, i = dets[k]
        f = found[s]
        near = [(math.dist(truth[s]["xyz"][g][:2], f["xyz"][i][:2]), g) for at, g in gts if at == s]
        near = [(d, g) for d, g in near if (s, g) not in taken]
        if near and min(near)[0] < distance:
            apart, g = min(near)
            t = truth[s]
            taken.add((s, g))
            hits += 1
            shared = math.prod(np.minimum(t["lwh"][g], f["lwh"][i]))
            scale = 1 - shared / (math.prod(t["lwh"][g]) + math.prod(f["lwh"][i]) - shared)
            period = math.pi if name == "barrier" else 2 * math.pi
            turned = (t["yaw"][g] - f["yaw"][i]) % period
            attribute = float(t["attribute"][g] != f["attribute"][i])
            velocity = math.dist(t["velocity"][g], f["velocity"][i])
            errors = apart, scale, min(turned, period - turned), velocity
            errors += (attribute if t["attribute"][g] else math.nan,)
            matched.append((f["score"][i], errors))
        scores.append(f["score"][i])
        precision.append(hits / len(scores))
        recall.append(hits / len(gts) if gts else 0)
    if not matched:
        return [0.0] + [1.0] * 5
    bins = [k * 0.01 for k in range(101)]
    interpolated = [interpolate(b, recall, precision) for b in bins]
    confidence = [interpolate(b, recall, scores) for b in bins]
    ap = sum(max(0, p - 0.1) / 0.9 for p in interpolated[11:]) / 90
    last = max((k for k in range(101) if confidence[k]), default=0)
    result = [ap]
    for kind in range(5):
        known = [e[kind] for _, e in matched]
        means = []
        for k in range(len(known)):
            some = [e for e in known[: k + 1] if not math.isnan(e)]
            means.append(sum(some) / len(some) if some else 0.0)
        if all(map(math.isnan, known)):
            means = [1.0] * len(known)
        rising, values = [s for s, _ in matched][::-1], means[::-1]
        at = [interpolate(min(c, rising[-1]), rising, values) for c in confidence[11 : last + 1]]
        result.append(sum(at) / len(at) if at else 1.0)
    return result
