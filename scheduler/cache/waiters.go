package cache

// Waiter is told when any object that it names changes. It carries no news:
// whoever waits reads the state again.
type Waiter struct {
	// C receives after a change. Changes that meet a full C are merged with
	// the one in it, so a reader that checks after every receive misses none.
	C    <-chan struct{}
	c    chan struct{}
	keys []string
}

// waiters has no lock; Cache gives it one.
type waiters map[string]map[*Waiter]struct{}

func (w waiters) add(keys []string) *Waiter {
	c := make(chan struct{}, 1)
	out := &Waiter{C: c, c: c, keys: keys}
	for _, k := range keys {
		if w[k] == nil {
			w[k] = map[*Waiter]struct{}{}
		}
		w[k][out] = struct{}{}
	}
	return out
}

func (w waiters) remove(out *Waiter) {
	for _, k := range out.keys {
		delete(w[k], out)
		if len(w[k]) == 0 {
			delete(w, k)
		}
	}
}

func (w waiters) poke(key string) {
	for out := range w[key] {
		select {
		case out.c <- struct{}{}:
		default:
		}
	}
}

// Keys of what can be waited for.

// ClaimKey names a claim by namespace/name; changes of a volume whose claimRef
// names the claim count too.
func ClaimKey(claim string) string { return "claim " + claim }

// VolumeKey names a PersistentVolume.
func VolumeKey(name string) string { return "volume " + name }

// PodKey names a pod by namespace/name.
func PodKey(pod string) string { return "pod " + pod }

// NodeKey names a node: its labels or its existence.
func NodeKey(name string) string { return "node " + name }
