import time
def test_try(lab):
    t=time.time()
    s=lab.run("budget.trials=2")
    print(time.time()-t)
    for e in lab.heard.events: print({k:v for k,v in e.items() if k not in('at',)})
    b=lab.best(s)
    for r in b['best']: print(r['trial'],r['gain'],r['flags'],r['throughput'])
    print(lab.store.analysis(s.id)['noise'])
