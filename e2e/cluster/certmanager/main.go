// cert-manager's controller, webhook and CA injector in one program, for the images that its chart names.
//
// The programs that its project builds are not in its Go module; what they run is. This one takes the arguments that
// the chart's Deployments give and follows those that matter here. It leaves out issuers beyond CA and SelfSigned,
// leader election and metrics. Its module path lies below cert-manager's, for the webhook is in an internal package.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/cert-manager/cert-manager/internal/apis/config/shared"
	config "github.com/cert-manager/cert-manager/internal/apis/config/webhook"
	"github.com/cert-manager/cert-manager/internal/webhook"
	cmv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/cert-manager/cert-manager/pkg/controller"
	"github.com/cert-manager/cert-manager/pkg/controller/cainjector"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	_ "github.com/cert-manager/cert-manager/pkg/controller/clusterissuers"
	_ "github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
	logf "github.com/cert-manager/cert-manager/pkg/logs"
	"github.com/cert-manager/cert-manager/pkg/util"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

type list []string

func (l *list) String() string         { return fmt.Sprint(*l) }
func (l *list) Set(value string) error { *l = append(*l, value); return nil }

// arguments of the chart's Deployments. What a flag means is in cert-manager's own documentation.
type arguments struct {
	resourceNamespace string
	securePort        int
	caNamespace       string
	caName            string
	dnsNames          list
}

func parse(words []string) arguments {
	var found arguments
	set := flag.NewFlagSet("certmanager", flag.ExitOnError)
	set.StringVar(&found.resourceNamespace, "cluster-resource-namespace", "cert-manager", "")
	set.IntVar(&found.securePort, "secure-port", 10250, "")
	set.StringVar(&found.caNamespace, "dynamic-serving-ca-secret-namespace", "", "")
	set.StringVar(&found.caName, "dynamic-serving-ca-secret-name", "", "")
	set.Var(&found.dnsNames, "dynamic-serving-dns-names", "")
	for _, left := range []string{
		"v", "leader-election-namespace", "acme-http01-solver-image", "metrics-listen-address",
		"max-concurrent-challenges",
	} {
		set.String(left, "", "not followed here")
	}
	set.Parse(words)
	return found
}

func main() {
	programs := map[string]func(context.Context, arguments) error{
		"controller": runController, "webhook": runWebhook, "cainjector": runInjector,
	}
	if len(os.Args) < 2 || programs[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: certmanager controller|webhook|cainjector [FLAG ...]")
		os.Exit(2)
	}
	logf.InitLogs()
	ctrl.SetLogger(logf.Log)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx = logf.NewContext(ctx, logf.Log, os.Args[1])
	if err := programs[os.Args[1]](ctx, parse(os.Args[2:])); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func runController(ctx context.Context, found arguments) error {
	factory, err := controller.NewContextFactory(ctx, controller.ContextOptions{
		KubernetesAPIQPS: 20, KubernetesAPIBurst: 50,
		IssuerOptions: controller.IssuerOptions{ClusterResourceNamespace: found.resourceNamespace},
		CertificateOptions: controller.CertificateOptions{ // as its own defaults
			CopiedAnnotationPrefixes:                 []string{"*", "-kubectl.kubernetes.io/", "-fluxcd.io/", "-argocd.argoproj.io/"},
			CertificateRequestMinimumBackoffDuration: time.Hour,
			CertificateRequestMaximumBackoffDuration: 32 * time.Hour,
		},
	})
	if err != nil {
		return err
	}
	base, err := factory.Build()
	if err != nil {
		return err
	}
	var names []string
	for name := range controller.Known() {
		names = append(names, name)
	}
	slices.Sort(names)
	running := make([]controller.Interface, 0, len(names))
	for _, name := range names {
		one, err := controller.Known()[name](factory)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		running = append(running, one)
	}
	base.SharedInformerFactory.Start(ctx.Done())
	base.KubeSharedInformerFactory.Start(ctx.Done())
	ended := make(chan error, len(running))
	for _, one := range running {
		go func() { ended <- one.Run(5, ctx) }()
	}
	for range running {
		if err := <-ended; err != nil {
			return err
		}
	}
	return nil
}

func runWebhook(ctx context.Context, found arguments) error {
	serving, err := webhook.NewCertManagerWebhookServer(logf.Log, config.WebhookConfiguration{
		SecurePort:  int32(found.securePort),
		HealthzPort: 6080,
		TLSConfig: shared.TLSConfig{Dynamic: shared.DynamicServingConfig{
			SecretNamespace: found.caNamespace,
			SecretName:      found.caName,
			DNSNames:        found.dnsNames,
			LeafDuration:    7 * 24 * time.Hour,
		}},
		MetricsListenAddress: "0",
	})
	if err != nil {
		return err
	}
	return serving.Run(ctx)
}

func runInjector(ctx context.Context, _ arguments) error {
	types := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		scheme.AddToScheme, cmv1.AddToScheme, apiextensions.AddToScheme, apiregistration.AddToScheme,
	} {
		utilruntime.Must(add(types))
	}
	manager, err := ctrl.NewManager(util.RestConfigWithUserAgent(ctrl.GetConfigOrDie(), "cainjector"), ctrl.Options{
		Scheme: types, Metrics: server.Options{BindAddress: "0"},
	})
	if err != nil {
		return err
	}
	if err := cainjector.RegisterAllInjectors(ctx, manager, cainjector.SetupOptions{
		EnableCertificatesDataSource: true,
		EnabledReconcilersFor: map[string]bool{
			cainjector.MutatingWebhookConfigurationName:   true,
			cainjector.ValidatingWebhookConfigurationName: true,
		},
	}); err != nil {
		return err
	}
	return manager.Start(ctx)
}
