package cache

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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
	w := &truth{r: r, claims: map[string]claimFacts{}, pvs: map[string]volumeFacts{}, caps: map[string]capacityFacts{},
		pools: map[string]*truePool{}, queues: map[string][]string{}, seen: map[string]bool{}}
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
		l.setCapacity(w.caps[key])
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
	switch w.r.IntN(12) {
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
			if p.free() < c.bytes {
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
				p := w.pools[v.pool]
				p.n++
				delete(p.used, name)
				delete(w.pvs, name)
				w.queues["volume"] = append(w.queues["volume"], name)
				return "delete " + name
			}
		}
	default:
		pool := "pool-" + []string{"n1", "n2"}[w.r.IntN(2)]
		class := simClasses[w.r.IntN(2)]
		w.publish(pool, class)
		return "publish " + pool + " " + class
	}
	return "nothing"
}

// TestLedgerInterleavings: a cluster does random things while the ledger sees
// claims, volumes and capacities through watches that lag apart. At no moment
// may an object offer more than its pool can still give (no lost hold); when
// all is delivered and published, it offers exactly that (no hold for ever);
// and a ledger built anew from the same objects agrees (restart).
func TestLedgerInterleavings(t *testing.T) {
	const rounds, steps = 200, 150
	kinds := []string{"claim", "volume", "capacity"}
	provisioned, refused := 0, 0
	for seed := range uint64(rounds) {
		r := rand.New(rand.NewPCG(seed, 7))
		w, l := newTruth(r), newLedger(time.Minute, places{})
		for _, n := range []string{"n1", "n2"} {
			l.setNode(n, nodeLabels(n))
		}
		var log []string
		for range steps {
			log = append(log, w.step(l))
			for range r.IntN(3) {
				kind := kinds[r.IntN(3)]
				if w.deliver(l, kind) {
					log = append(log, "  see "+kind)
				}
			}
			for id, p := range w.pools {
				left := p.total - w.promised(id, l)
				for _, class := range simClasses {
					for _, f := range free(l, class, p.node) {
						if f > left {
							t.Fatalf("seed %d: %s offers %d of class %s, has %d left\n%s", seed, id, f, class, left, lines(log))
						}
					}
				}
				if p.free() < 0 {
					t.Fatalf("seed %d: %s is over-committed\n%s", seed, id, lines(log))
				}
			}
			checkClean(t, l)
		}
		settle(w, l, kinds)
		rebuilt := newLedger(time.Minute, places{})
		for _, n := range []string{"n1", "n2"} {
			rebuilt.setNode(n, nodeLabels(n))
		}
		for _, c := range w.claims {
			rebuilt.setClaim(c)
		}
		for _, v := range w.pvs {
			rebuilt.setVolume(v)
		}
		for _, c := range w.caps {
			rebuilt.setCapacity(c)
		}
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
		for _, line := range log {
			if len(line) > 9 && line[:9] == "provision" {
				provisioned++
			}
			if len(line) > 7 && line[:7] == "no room" {
				refused++
			}
		}
	}
	if provisioned < rounds || refused < rounds/4 {
		t.Errorf("poor cases: %d volumes provisioned, %d claims refused", provisioned, refused)
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

func lines(log []string) string {
	out := ""
	for _, s := range log {
		out += s + "\n"
	}
	return out
}
