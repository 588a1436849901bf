package nodeagent

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	podvolumesv1 "github.com/berth-storage/berth/nodeagent/podvolumes/v1"
	"github.com/berth-storage/berth/test/seeds"
)

// TestCrowd lives many pods at once on shared and own volumes, with a driver
// that fails now and then: before its effect for good, or around it with the
// answer lost. While a pod has its volumes they are there; at the end nothing is.
func TestCrowd(t *testing.T) {
	c := newCluster(t)
	var mu sync.Mutex
	random, failures := rand.New(rand.NewPCG(1+seeds.First(t), 2)), 12
	c.driver.Hook = func(_ string, after bool) error {
		mu.Lock()
		defer mu.Unlock()
		if failures == 0 || random.IntN(5) != 0 {
			return nil
		}
		failures--
		if !after && random.IntN(2) == 0 {
			return status.Error(codes.Internal, "not today")
		}
		return status.Error(codes.DeadlineExceeded, "lost")
	}
	c.start()
	c.register()
	const pods, shared = 12, 3
	for i := range shared {
		c.claim(fmt.Sprintf("shared-%d", i), nil)
	}
	var refs []*podvolumesv1.PodRef
	var claims [][]string
	for i := range pods {
		own := fmt.Sprintf("own-%d", i)
		c.claim(own, nil)
		claims = append(claims, []string{own, fmt.Sprintf("shared-%d", i%shared)})
		refs = append(refs, c.pod(fmt.Sprintf("pod-%d", i), claims[i]...))
	}
	var wg sync.WaitGroup
	for i, ref := range refs {
		wg.Go(func() {
			if _, err := c.rt.Prepare(t.Context(), &podvolumesv1.PrepareRequest{Pod: ref}); err != nil {
				t.Errorf("Prepare of %s: %v", ref.Name, err)
				return
			}
			_, published, _ := c.driver.World()
			for _, claim := range claims[i] {
				if !slices.Contains(published, c.target(ref.Name, claim)) {
					t.Errorf("%s was handed %s, which is not published", ref.Name, claim)
				}
			}
			if _, err := c.rt.Release(t.Context(), &podvolumesv1.ReleaseRequest{PodUid: ref.Uid}); err != nil {
				t.Errorf("Release of %s: %v", ref.Name, err)
			}
			_, published, _ = c.driver.World()
			for _, claim := range claims[i] {
				if slices.Contains(published, c.target(ref.Name, claim)) {
					t.Errorf("%s was released, but %s is still published", ref.Name, claim)
				}
			}
		})
	}
	wg.Wait()
	for _, ref := range refs {
		c.deletePod(ref)
	}
	c.awaitWorld("nothing is mounted", 0, 0)
	c.world("at the end", nil, nil)
	c.await("no record", func() bool { return len(c.agent.store.Keys()) == 0 })
}
