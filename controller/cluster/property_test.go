package cluster

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-storage/berth/controller/internal/csitest"
	"github.com/berth-storage/berth/test/seeds"
	"github.com/berth-storage/berth/volume"
)

type storageCapacity = storagev1.CSIStorageCapacity

// pool is a node's storage as it really is.
type pool struct {
	total, used, allocation int64
}

// burst is a cluster in which claims come and go faster than caches follow.
type burst struct {
	*world
	rng   *rand.Rand
	pools map[string]*pool
	n     int
}

// TestNeverOverCommitted: whatever the order of events, and however old the
// cache of each kind, the claims selected for a node fit into its pool.
func TestNeverOverCommitted(t *testing.T) {
	for seed := range seeds.Each(t, 12) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			b := &burst{rng: rand.New(rand.NewPCG(seed, 1)), pools: map[string]*pool{}}
			free := map[string]int64{}
			for i := range 1 + b.rng.IntN(4) {
				name := fmt.Sprintf("n%d", i)
				free[name] = (4 + b.rng.Int64N(12)) * gi
				b.pools[name] = &pool{total: free[name]}
			}
			b.world = newWorld(t, nodesWith(free)...)
			for range 100 {
				b.step()
			}
			b.finish()
		})
	}
}

func (b *burst) step() {
	switch b.rng.IntN(10) {
	case 0, 1:
		for range 1 + b.rng.IntN(4) {
			b.create(makeClaim(fmt.Sprintf("c-%d", b.n), (1+b.rng.Int64N(4))*gi))
			b.n++
		}
	case 2, 3:
		b.provision()
	case 4:
		b.publish()
	case 5:
		b.remove()
	case 6:
		b.cache.sync(b.t, &b.cache.claims)
	case 7:
		b.cache.sync(b.t, []client.ObjectList{&b.cache.volumes, &b.cache.offers}[b.rng.IntN(2)])
	case 8:
		// The next request but some is answered by an error, with or without effect.
		*b.steps = csitest.Steps{At: 1 + b.rng.IntN(6), Mode: csitest.Mode(b.rng.IntN(2))}
	default:
		// An error is repeated by the queue: another round comes here too.
		_ = b.round()
		b.check()
	}
}

func (b *burst) create(o client.Object) {
	b.t.Helper()
	if err := b.api.Create(context.Background(), o); err != nil {
		b.t.Fatal(err)
	}
}

func (b *burst) all() []corev1.PersistentVolumeClaim {
	b.t.Helper()
	var claims corev1.PersistentVolumeClaimList
	if err := b.api.List(context.Background(), &claims); err != nil {
		b.t.Fatal(err)
	}
	return claims.Items
}

// pick is some claim that a volume was made for, or not.
func (b *burst) pick(volumeMade bool) *corev1.PersistentVolumeClaim {
	var of []*corev1.PersistentVolumeClaim
	for _, c := range b.all() {
		if c.Annotations[volume.AnnSelectedNode] != "" && (c.Spec.VolumeName != "") == volumeMade {
			of = append(of, &c)
		}
	}
	if len(of) == 0 {
		return nil
	}
	return of[b.rng.IntN(len(of))]
}

func size(c *corev1.PersistentVolumeClaim) int64 {
	q := c.Spec.Resources.Requests[corev1.ResourceStorage]
	return q.Value()
}

// provision is an agent that makes the volume of a claim and sees it bound.
func (b *burst) provision() {
	c := b.pick(false)
	if c == nil {
		return
	}
	node := c.Annotations[volume.AnnSelectedNode]
	p := b.pools[node]
	p.used += size(c)
	p.allocation++
	pv := makeVolume(c, node, p.allocation)
	b.create(pv)
	update(b.world, c, func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = pv.Name })
}

// publish is an agent that publishes its pool's capacity.
func (b *burst) publish() {
	for node, p := range b.pools {
		if b.rng.IntN(2) == 0 {
			continue
		}
		now := makeCapacity(node, p.total-p.used, p.allocation)
		update(b.world, makeCapacity(node, 0, 0), func(c *storageCapacity) { c.Capacity, c.Annotations = now.Capacity, now.Annotations })
	}
}

// remove deletes a claim, and its volume if it has one.
func (b *burst) remove() {
	c := b.pick(b.rng.IntN(3) > 0)
	if c == nil {
		return
	}
	ctx := context.Background()
	if err := b.api.Delete(ctx, c); err != nil {
		b.t.Fatal(err)
	}
	if c.Spec.VolumeName == "" {
		return
	}
	pv := &corev1.PersistentVolume{}
	if err := b.api.Get(ctx, types.NamespacedName{Name: c.Spec.VolumeName}, pv); err != nil {
		b.t.Fatal(err)
	}
	if err := b.api.Delete(ctx, pv); err != nil {
		b.t.Fatal(err)
	}
	p := b.pools[c.Annotations[volume.AnnSelectedNode]]
	p.used -= size(c)
	p.allocation++
}

// check follows a round: nothing else promises space.
func (b *burst) check() {
	b.t.Helper()
	promised := map[string]int64{}
	for _, c := range b.all() {
		if c.Spec.VolumeName == "" {
			promised[c.Annotations[volume.AnnSelectedNode]] += size(&c)
		}
	}
	for node, p := range b.pools {
		if p.used+promised[node] > p.total {
			b.t.Fatalf("%s: %d used and %d promised of %d GiB", node, p.used/gi, promised[node]/gi, p.total/gi)
		}
	}
}

// finish lets everything settle: then no claim waits that some pool could hold.
func (b *burst) finish() {
	*b.steps = csitest.Steps{}
	for range 3 {
		for c := b.pick(false); c != nil; c = b.pick(false) {
			b.provision()
		}
		for node, p := range b.pools {
			now := makeCapacity(node, p.total-p.used, p.allocation)
			update(b.world, makeCapacity(node, 0, 0), func(c *storageCapacity) { c.Capacity, c.Annotations = now.Capacity, now.Annotations })
		}
		b.cache.sync(b.t)
		if err := b.round(); err != nil {
			b.t.Fatal(err)
		}
		b.check()
		b.cache.sync(b.t)
	}
	for _, c := range b.all() {
		if c.Annotations[volume.AnnSelectedNode] != "" {
			continue
		}
		for node, p := range b.pools {
			if p.total-p.used >= size(&c) {
				b.t.Errorf("claim %s of %d GiB waits, %s has %d GiB free", c.Name, size(&c)/gi, node, (p.total-p.used)/gi)
			}
		}
	}
}
