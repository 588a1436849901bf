package cache

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-storage/berth/test/seeds"
)

// truth is a cluster with numbered pools: the API as it is, of which the ledger
// sees each kind of object with a delay of its own.
type truth struct {
	r      *rand.Rand
	clock  int
	claims map[string]claimFacts
	pvs    map[string]volumeFacts
	caps   map[string]capacityFacts
	pools  map[string]*truePool
	// queue of each watch: keys whose state the ledger has yet to read.
	queues map[string][]string
	// seen is what each watch has delivered: claims whose volume the ledger
	// has not met must not be deleted (decision 2 ends their hold).
	seen map[string]bool
	next int
}

type truePool struct {
	node  string
	total int64
	n     int64
	used  map[string]int64
	// silent are allocations that no claim or volume announces (snapshots, and
	// what volumes grew by): only a capacity that is newer knows of them.
	silent []silentAllocation
}

type silentAllocation struct {
	n, bytes int64
	owner    string
}

// take allocates without announcing it.
func (p *truePool) take(owner string, bytes int64) {
	p.n++
	p.used[owner] += bytes
	p.silent = append(p.silent, silentAllocation{p.n, bytes, owner})
}

// drop frees all that the owner has.
func (p *truePool) drop(owner string) {
	p.n++
	delete(p.used, owner)
	p.silent = slices.DeleteFunc(p.silent, func(s silentAllocation) bool { return s.owner == owner })
}

// silentAfter is what an object of that count cannot know.
func (p *truePool) silentAfter(n int64) (bytes int64) {
	for _, s := range p.silent {
		if s.n > n {
			bytes += s.bytes
		}
	}
	return bytes
}

func (p *truePool) free() int64 {
	left := p.total
	for _, b := range p.used {
		left -= b
	}
	return left
}

var simClasses = []string{"A", "B"}

func newTruth(r *rand.Rand) *truth {
	w := &truth{
		r: r, claims: map[string]claimFacts{}, pvs: map[string]volumeFacts{}, caps: map[string]capacityFacts{},
		pools: map[string]*truePool{}, queues: map[string][]string{}, seen: map[string]bool{},
	}
	for _, node := range []string{"n1", "n2"} {
		w.pools["pool-"+node] = &truePool{node: node, total: 100, used: map[string]int64{}}
		for _, class := range simClasses {
			w.publish("pool-"+node, class)
		}
	}
	return w
}

func (w *truth) version() string { w.clock++; return strconv.Itoa(w.clock) }

func (w *truth) publish(pool, class string) {
	p := w.pools[pool]
	f := capacityOf(class, p.node, pool, p.n, p.free(), w.version())
	w.caps[f.key] = f
	w.queues["capacity"] = append(w.queues["capacity"], f.key)
}

func (w *truth) setClaim(c claimFacts) {
	c.version = w.version()
	w.claims[c.uid] = c
	w.queues["claim"] = append(w.queues["claim"], c.uid)
}

// deliver lets the ledger see one queued object of one kind, as it is by then
// or, as a slow watch would, not at all yet.
func (w *truth) deliver(l *ledger, kind string) bool {
	q := w.queues[kind]
	if len(q) == 0 {
		return false
	}
	key := q[0]
	w.queues[kind] = q[1:]
	switch kind {
	case "claim":
		if c, ok := w.claims[key]; ok {
			l.setClaim(c)
		} else {
			l.deleteClaim(key)
		}
	case "volume":
		if v, ok := w.pvs[key]; ok {
			l.setVolume(v)
			w.seen[key] = true
		} else {
			l.deleteVolume(key)
		}
	case "capacity":
		offer(l, w.caps[key])
	}
	return true
}

// promised is what a pool owes: what is used, and what was reserved or selected
// and has no volume yet.
func (w *truth) promised(pool string, l *ledger) int64 {
	p := w.pools[pool]
	sum := p.total - p.free()
	for uid, c := range w.claims {
		node := c.selected
		if node == "" {
			node = l.reservedNode(uid)
		}
		if _, made := p.used["pvc-"+uid]; node == p.node && !made {
			sum += c.bytes
		}
	}
	return sum
}

// step does one random thing.
func (w *truth) step(l *ledger) string {
	claims := slices.Sorted(maps.Keys(w.claims))
	pick := func() (claimFacts, bool) {
		if len(claims) == 0 {
			return claimFacts{}, false
		}
		return w.claims[claims[w.r.IntN(len(claims))]], true
	}
	switch w.r.IntN(15) {
	case 0: // a claim and a scheduling cycle that reserves it where the ledger says there is room
		w.next++
		c := claimFacts{uid: fmt.Sprintf("c%d", w.next), class: simClasses[w.r.IntN(2)], bytes: int64(5 + w.r.IntN(30))}
		w.setClaim(c)
		c = w.claims[c.uid]
		node := []string{"n1", "n2"}[w.r.IntN(2)]
		if f := free(l, c.class, node); len(f) == 1 && f[0] >= c.bytes {
			l.reserve(c, node, "pod-"+c.uid)
			return "reserve " + c.uid + " on " + node
		}
		return "no room for " + c.uid
	case 1, 2: // the selection is written
		if c, ok := pick(); ok && c.selected == "" {
			if node := l.reservedNode(c.uid); node != "" {
				c.selected = node
				w.setClaim(c)
				l.written(c.uid, w.claims[c.uid].version)
				return "select " + c.uid
			}
		}
	case 3: // the pod is given up
		if c, ok := pick(); ok {
			l.release(c.uid, "pod-"+c.uid, time.Time{})
			return "release " + c.uid
		}
	case 4, 5: // the provisioner makes the volume, acknowledges the PV, then may publish
		if c, ok := pick(); ok && c.selected != "" && w.pvs["pvc-"+c.uid].name == "" && c.volumeName == "" {
			pool := "pool-" + c.selected
			p := w.pools[pool]
			// Others may have taken the room; and a driver may refuse for a reason of its own.
			if p.free() < c.bytes || w.r.IntN(8) == 0 {
				c.selected = ""
				w.setClaim(c)
				return "give back " + c.uid
			}
			name := "pvc-" + c.uid
			p.n++
			p.used[name] = c.bytes
			w.pvs[name] = volumeFacts{name: name, claimUID: c.uid, pool: pool, allocation: p.n, bytes: c.bytes}
			w.queues["volume"] = append(w.queues["volume"], name)
			return "provision " + c.uid
		}
	case 6: // the PV controller binds
		if c, ok := pick(); ok && c.volumeName == "" && w.pvs["pvc-"+c.uid].name != "" {
			c.volumeName = "pvc-" + c.uid
			w.setClaim(c)
			return "bind " + c.uid
		}
	case 7: // a claim is deleted, and its volume with it
		if c, ok := pick(); ok && (c.selected == "" || w.seen["pvc-"+c.uid]) && l.reservedNode(c.uid) == "" {
			delete(w.claims, c.uid)
			w.queues["claim"] = append(w.queues["claim"], c.uid)
			return "delete claim " + c.uid
		}
	case 8: // volumes of deleted claims go
		for _, name := range slices.Sorted(maps.Keys(w.pvs)) {
			v := w.pvs[name]
			if _, alive := w.claims[v.claimUID]; !alive {
				w.pools[v.pool].drop(name)
				delete(w.pvs, name)
				w.queues["volume"] = append(w.queues["volume"], name)
				return "delete " + name
			}
		}
	case 9: // a volume grows: the claim asks for more, and the driver takes it
		if c, ok := pick(); ok && w.pvs["pvc-"+c.uid].name != "" {
			v, grown := w.pvs["pvc-"+c.uid], int64(1+w.r.IntN(10))
			p := w.pools[v.pool]
			if p.free() < grown {
				return "no room to grow " + c.uid
			}
			c.bytes += grown
			w.setClaim(c)
			p.take(v.name, grown)
			v.bytes += grown
			w.pvs[v.name] = v
			w.queues["volume"] = append(w.queues["volume"], v.name)
			return "grow " + c.uid
		}
	case 10, 11: // a snapshot is taken, or an old one deleted
		pool := "pool-" + []string{"n1", "n2"}[w.r.IntN(2)]
		p := w.pools[pool]
		owner := fmt.Sprintf("snapshot-%d", w.r.IntN(3))
		if _, there := p.used[owner]; there {
			p.drop(owner)
			return "delete " + owner + " of " + pool
		}
		if p.free() >= 8 {
			p.take(owner, 8)
			return "take " + owner + " of " + pool
		}
	default:
		pool := "pool-" + []string{"n1", "n2"}[w.r.IntN(2)]
		class := simClasses[w.r.IntN(2)]
		w.publish(pool, class)
		return "publish " + pool + " " + class
	}
	return "nothing"
}

// restart is a ledger that knows nothing but the API's objects, read in any order.
func (w *truth) restart() *ledger {
	l := newLedger(time.Minute, newPlaces(newAtlas()))
	steps := []func(){
		func() { l.setNode("n1", nodeLabels("n1")) }, func() { l.setNode("n2", nodeLabels("n2")) },
	}
	for _, c := range w.claims {
		steps = append(steps, func() { l.setClaim(c) })
	}
	for name, v := range w.pvs {
		steps = append(steps, func() { l.setVolume(v) })
		w.seen[name] = true
	}
	for _, c := range w.caps {
		steps = append(steps, func() { offer(l, c) })
	}
	w.r.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
	for _, s := range steps {
		s()
	}
	return l
}

// overOffer is the first object that offers more than its pool has left, beyond
// what it cannot know.
func (w *truth) overOffer(l *ledger) error {
	for id, p := range w.pools {
		left := p.total - w.promised(id, l)
		for key, o := range l.objects {
			if o.pool != id {
				continue
			}
			for _, f := range free(l, o.class, p.node) {
				if slack := p.silentAfter(o.allocation); f > left+slack {
					return fmt.Errorf("%s offers %d, its pool has %d left (and %d that it cannot know of)", key, f, left, slack)
				}
			}
		}
		if p.free() < 0 {
			return fmt.Errorf("%s is over-committed", id)
		}
	}
	return nil
}

// TestLedgerInterleavings: a cluster does random things (reserve, select, give
// up, provision, bind, grow, snapshot, delete, publish) while the ledger sees
// claims, volumes and capacities through watches that lag apart, and now and
// then crashes. At no moment may an object offer more than its pool can still
// give (no lost hold, no over-commit); when all is delivered and published, it
// offers exactly that (no hold for ever); and a ledger built anew agrees.
func TestLedgerInterleavings(t *testing.T) {
	const steps = 200
	kinds := []string{"claim", "volume", "capacity"}
	count := map[string]int{}
	rounds := seeds.Rounds(t, 200, func(seed uint64, r *rand.Rand) {
		w := newTruth(r)
		l := w.restart()
		var log []string
		note := func(line string) {
			log = append(log, line)
			kind, _, _ := strings.Cut(line, " ")
			count[kind]++
		}
		for range steps {
			if r.IntN(60) == 0 {
				l = w.restart()
				note("restart")
			}
			note(w.step(l))
			for range r.IntN(3) {
				if kind := kinds[r.IntN(3)]; w.deliver(l, kind) {
					note("see " + kind)
				}
			}
			if err := w.overOffer(l); err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, lines(log))
			}
			checkClean(t, l)
		}
		settle(w, l, kinds)
		rebuilt := w.restart()
		for id, p := range w.pools {
			want := p.total - w.promised(id, l)
			for _, class := range simClasses {
				for name, got := range map[string][]int64{"ledger": free(l, class, p.node), "rebuilt ledger": free(rebuilt, class, p.node)} {
					if diff := cmp.Diff([]int64{want}, got); diff != "" {
						t.Fatalf("seed %d: %s on %s class %s: (-want +got)\n%s\n%s", seed, name, id, class, diff, lines(log))
					}
				}
			}
		}
	})
	if rounds < 200 {
		return
	}
	for kind, least := range map[string]int{"reserve": rounds, "provision": rounds, "no": rounds / 4, "grow": rounds / 2, "take": rounds, "restart": rounds, "delete": rounds, "give": rounds / 20} {
		if count[kind] < least {
			t.Errorf("poor cases: %q happened %d times in %d rounds", kind, count[kind], rounds)
		}
	}
}

// settle ends what only the scheduler could end, publishes all and delivers all.
func settle(w *truth, l *ledger, kinds []string) {
	for uid := range w.claims {
		l.release(uid, "pod-"+uid, time.Time{})
	}
	for pool := range w.pools {
		for _, class := range simClasses {
			w.publish(pool, class)
		}
	}
	for _, kind := range kinds {
		for w.deliver(l, kind) {
		}
	}
}

func lines(log []string) string { return strings.Join(log, "\n") }
